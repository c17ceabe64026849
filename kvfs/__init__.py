"""kvfs: a context memory on pooled NVMe, mounted as a volume."""
