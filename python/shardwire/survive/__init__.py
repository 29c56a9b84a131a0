"""Groups that go on after the death of a rank, or with other processes."""
