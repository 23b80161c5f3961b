// Makes a device the calling thread's current one, and puts the former back.
#pragma once
#include "gpu/cuda/errors.h"

namespace ringdp::gpu {

class OnDevice {
 public:
  explicit OnDevice(int device) {
    check("cudaGetDevice", cudaGetDevice(&before_), "rd_gpu_count says whether there is a device");
    check("cudaSetDevice(" + std::to_string(device) + ")", cudaSetDevice(device),
          "rd_gpu_count says how many there are");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace ringdp::gpu
