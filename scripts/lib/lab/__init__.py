"""The lab: real NVMe over fabrics and real RDMA, in emulated machines, on a machine that has neither.

`lab.py` is where to begin. Nothing is imported here: the agent in a guest starts faster for it.
"""
