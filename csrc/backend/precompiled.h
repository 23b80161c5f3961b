// The torch headers that most files below the torch line include. setup.py has GCC parse them once; each file still
// includes what it uses, and compiles without this.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
