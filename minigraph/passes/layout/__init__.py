"""The memory layouts of images, chosen over the whole network."""
