"""Exports of a storage node: block devices and files that hosts reach through the kernel's NVMe target, nvmet."""
