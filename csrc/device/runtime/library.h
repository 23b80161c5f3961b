// libringdp_gpu.so, opened at run time: a table of its functions, or a message that says how to get one.
//
// RINGDP_GPU_LIBRARY names another file than the one beside this extension. An opened library is never closed.
#pragma once
#include <string>

#include "device/runtime/ringdp_gpu.h"

namespace ringdp::gpu {

struct Functions {
  decltype(&rd_gpu_error) error;
  decltype(&rd_gpu_count) count;
  decltype(&rd_gpu_describe) describe;
  decltype(&rd_gpu_alloc) alloc;
  decltype(&rd_gpu_free) free;
  decltype(&rd_gpu_export) export_memory;
  decltype(&rd_gpu_import) import_memory;
  decltype(&rd_gpu_unimport) unimport_memory;
  decltype(&rd_gpu_host_alloc) host_alloc;
  decltype(&rd_gpu_host_free) host_free;
  decltype(&rd_gpu_host_map) host_map;
  decltype(&rd_gpu_host_unmap) host_unmap;
  decltype(&rd_gpu_copy_now) copy_now;
  decltype(&rd_gpu_stream) stream;
  decltype(&rd_gpu_swap_capture_mode) swap_capture_mode;
  decltype(&rd_gpu_copy) copy;
  decltype(&rd_gpu_call) call;
  decltype(&rd_gpu_await) await;
  decltype(&rd_gpu_write) write;
  decltype(&rd_gpu_is_capturing) is_capturing;
  decltype(&rd_gpu_run) run;
  decltype(&rd_gpu_reduces) reduces;
  decltype(&rd_gpu_poison) poison;
  decltype(&rd_gpu_deliver) deliver;
  decltype(&rd_gpu_pass_abort_on) pass_abort_on;
  decltype(&rd_gpu_adam_step) adam_step;
  decltype(&rd_gpu_recode) recode;
  decltype(&rd_gpu_kernels) kernels;
  decltype(&rd_gpu_nccl) nccl;
};

// Throws Error(kInternal) with the library's last error message, unless `result` is 0.
void require(const Functions& functions, int result);

// Loads all kernels on the current device. Loading one at its first launch would wait for running kernels, which poll.
void load_kernels(const Functions& functions);

struct Library {
  std::string path;
  bool opened = false;
  Functions functions = {};  // set when opened
  std::string why_not;       // else
};

// The library of this process, opened by the first call. Thread-safe; never throws.
const Library& library();

// Opens the library at a path. Refuses one with another ABI number or without a required function.
Library open_library(const std::string& path);

}  // namespace ringdp::gpu
