"""The CUDA device.  Its libraries are optional: nothing imports this before a device is opened."""
