"""What the doors to other libraries' models share."""
