// The one place for differences between torch releases (2.11 to 2.15).
#pragma once
#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11
#error "ringdp needs torch 2.11 or newer (pip install torch==2.13.0)"
#endif
