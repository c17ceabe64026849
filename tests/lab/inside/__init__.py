"""Programs that tests run inside guests."""
