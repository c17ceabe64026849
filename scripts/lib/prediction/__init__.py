"""What predictions are measured with: traces of requests, and caches to compare with."""
