"""blockdev: pools of NVMe namespaces, block devices and files, and the objects in them.

Knows nothing of FUSE, engines or prediction. Import from its modules: `blockdev.pool` opens and creates pools,
`blockdev.device` is the seam to media, `blockdev.types` and `blockdev.errors` are the vocabulary.
"""

from __future__ import annotations
