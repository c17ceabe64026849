"""The mount: files as the kernel sees them. The only package that knows pyfuse3.

mount       makes the mount, serves it, ends it
operations  the kernel's requests, translated and delegated; errno_map turns exceptions into answers
tree        names: looking up, making, moving and removing them
openfiles   opening, reading, writing, closing
inodes      the numbers that the kernel holds; retries: what a repeated request is to find
drafts      files that are being written; content and ranges: their bytes; memory: their frames and slots; saving: how
            their bytes get to media
lane        threads that answer READ and WRITE; relay: what pyfuse3 answers; slow: what must wait
readers     published files that are being read; versions: their extents in DRAM
listing     the contents of directories
notify      what the kernel must forget; tune: what it must be told
"""
