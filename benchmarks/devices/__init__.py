"""libringdp_gpu.so by its C interface: device plans on one GPU, as streams of one process or as processes."""
