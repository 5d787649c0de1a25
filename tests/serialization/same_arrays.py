"""Arrays by name that are the same to the bit."""


def assert_same(arrays, expected):
    assert set(arrays) == set(expected)
    for name, value in expected.items():
        assert arrays[name].dtype == value.dtype, name
        assert arrays[name].shape == value.shape, name
        assert arrays[name].tobytes() == value.tobytes(), name
