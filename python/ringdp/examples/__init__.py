"""Programs to run and to read: `torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt`."""
