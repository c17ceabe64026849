"""What will be wanted: chains of blocks, who comes back, and which of it to fetch first."""
