"""What a function is made of and how long it takes, for people to read."""
