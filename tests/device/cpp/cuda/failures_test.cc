// Whatever call of CUDA fails is named and leaves nothing behind; whatever argument is wrong is refused by its name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cpp/cuda/stand_in.h"
#include "device/kernel/work.h"

namespace ringdp::gpu::testing {
namespace {

using plan::DeviceSpace;
using plan::DeviceStep;
using plan::DeviceVerb;

size_t held() { return control<size_t()>("stand_in_held")(); }

using Calls = std::set<std::string>;

// What only tidies up, restores or asks which way to go: the operation may succeed without it.
const Calls kMayFail = {"cudaSetDevice",     "cudaThreadExchangeStreamCaptureMode",
                        "cudaStreamDestroy", "cudaFree",
                        "cudaFreeHost",      "cuPointerGetAttribute",
                        "cuCtxSetCurrent"};

// What is wrong with an operation of which one call failed; "": nothing.
std::string fault_of(const std::string& call, int result, const std::string& error) {
  static const std::map<std::string, std::string> kWords = {{"launch_on_host_threads", "launching"},
                                                            {"cudaGetDriverEntryPointByVersion", "looking up"}};
  if (result == 0) return kMayFail.count(call) ? "" : "it succeeded though " + call + " failed";
  const auto words = kWords.find(call);
  const std::string& expected = words == kWords.end() ? call : words->second;
  return error.find(expected) == std::string::npos ? "'" + error + "' does not name " + call : "";
}

bool gives_back(const std::string& call) {
  return call == "cudaStreamDestroy" || call == "cudaFree" || call == "cudaFreeHost";
}

// Has every call of CUDA that `operation` makes fail once, each time on a fresh thread; the names of those calls.
// `undo`: what the caller does when it succeeds. Twice, because functions of the driver are looked up only once.
std::set<std::string> fail_each(
    const std::string& name, const std::function<int()>& operation, const std::function<void()>& undo = [] {}) {
  std::set<std::string> failed;
  for (int k = 1, passes = 0; passes < 2; ++k) {
    const size_t before = held();
    std::string call, error;
    int result = 0;
    std::thread([&] {
      control<void(int)>("stand_in_fail")(k);
      result = operation();
      error = gpu().error();
      const char* const told = control<const char*()>("stand_in_failed")();
      call = told == nullptr ? "" : told;
      control<void(int)>("stand_in_fail")(0);
      if (result == 0) undo();
    }).join();
    if (call.empty()) {
      EXPECT_EQ(result, 0) << name << ": " << error;
      ++passes;
      k = 0;
      continue;
    }
    failed.insert(call);
    EXPECT_EQ(fault_of(call, result, error), "") << name << ", call " << k;
    if (gives_back(call)) continue;
    EXPECT_EQ(held(), before) << name << ": " << call << " failed";
  }
  return failed;
}

void expect_all(const Calls& failed, const Calls& expected) {
  for (const std::string& call : expected) EXPECT_TRUE(failed.count(call)) << call << " was not called";
}

TEST(EveryFailure, OfTakingMemory) {
  void *memory = nullptr, *host = nullptr;
  const auto give_back = [&] { succeed(gpu().free(memory)); };
  expect_all(fail_each(
                 "alloc", [&] { return gpu().alloc(0, 5000, RD_GPU_SHARE_AUTO, &memory); }, give_back),
             {"cudaMalloc", "cuPointerGetAttribute", "cudaMemsetAsync", "cudaStreamSynchronize"});
  expect_all(fail_each(
                 "alloc by fd", [&] { return gpu().alloc(1, 5000, RD_GPU_SHARE_FD, &memory); }, give_back),
             {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cudaStreamCreateWithFlags"});
  expect_all(
      fail_each(
          "host_alloc", [&] { return gpu().host_alloc(100, &host, &memory); }, [&] { succeed(gpu().host_free(host)); }),
      {"cudaHostAlloc", "cudaHostGetDevicePointer"});
  alignas(4096) static char page[4096];
  expect_all(fail_each(
                 "host_map", [&] { return gpu().host_map(page, sizeof page, &memory); },
                 [&] { succeed(gpu().host_unmap(page)); }),
             {"cudaHostRegister", "cudaHostGetDevicePointer"});
}

TEST(EveryFailure, OfSharingMemory) {
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    void *memory = nullptr, *imported = nullptr;
    succeed(gpu().alloc(0, 5000, sharing, &memory));
    rd_gpu_handle handle;
    int fd = -1;
    const auto renew = [&] {  // an allocation is asked for its handle once
      if (fd >= 0) close(fd);
      succeed(gpu().free(memory));
      succeed(gpu().alloc(0, 5000, sharing, &memory));
    };
    expect_all(fail_each(
                   "export", [&] { return gpu().export_memory(memory, &handle, &fd); }, renew),
               {sharing == RD_GPU_SHARE_FD ? "cuMemExportToShareableHandle" : "cudaIpcGetMemHandle"});
    succeed(gpu().export_memory(memory, &handle, &fd));
    expect_all(fail_each(
                   "import on another device", [&] { return gpu().import_memory(1, &handle, fd, &imported); },
                   [&] { succeed(gpu().unimport_memory(imported)); }),
               sharing == RD_GPU_SHARE_FD ? Calls{"cuMemSetAccess"}
                                          : Calls{"cudaDeviceCanAccessPeer", "cudaDeviceEnablePeerAccess"});
    if (sharing == RD_GPU_SHARE_FD) {
      handle.key[0] ^= 1;  // as if another process had sent it
      expect_all(fail_each(
                     "import", [&] { return gpu().import_memory(0, &handle, fd, &imported); },
                     [&] { succeed(gpu().unimport_memory(imported)); }),
                 {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"});
      close(fd);
    }
    succeed(gpu().free(memory));
  }
}

// What fails while the first failure is tidied up does not hide it.
TEST(EveryFailure, OfALostDeviceIsTheFirst) {
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    Calls failed;
    for (int k = 1;; ++k) {
      void* memory = nullptr;
      control<void(int)>("stand_in_fail")(-k);
      const int result = gpu().alloc(0, 5000, sharing, &memory);
      const char* const call = control<const char*()>("stand_in_failed")();
      control<void(int)>("stand_in_fail")(0);
      set_device(0);
      if (result == 0) succeed(gpu().free(memory));
      if (call == nullptr) break;
      failed.insert(call);
      if (kMayFail.count(call)) continue;  // then a later call is named
      EXPECT_EQ(fault_of(call, result, gpu().error()), "");
    }
    expect_all(failed, {"cudaSetDevice", "cudaStreamCreateWithFlags", "cudaMemsetAsync"});
  }
}

// A call that fails keeps no other from being made; of several failures the first is told.
TEST(EveryFailure, OfGivingMemoryBack) {
  void *memory = nullptr, *imported = nullptr;
  succeed(gpu().alloc(0, 5000, RD_GPU_SHARE_FD, &memory));
  rd_gpu_handle handle;
  int fd = -1;
  succeed(gpu().export_memory(memory, &handle, &fd));
  const std::map<std::string, size_t> left = {{"cuMemUnmap", 2}, {"cuMemAddressFree", 1}, {"cuMemRelease", 1}};
  std::set<std::string> failed;
  for (int k = 1; k < 20; ++k) {
    handle.key[0] = static_cast<unsigned char>(handle.key[0] + 1);
    const size_t before = held();
    succeed(gpu().import_memory(0, &handle, fd, &imported));
    std::thread([&] {
      control<void(int)>("stand_in_fail")(k);
      const int result = gpu().unimport_memory(imported);
      const char* const call = control<const char*()>("stand_in_failed")();
      control<void(int)>("stand_in_fail")(0);
      const auto known = call == nullptr ? left.end() : left.find(call);
      if (known == left.end()) return;
      failed.insert(call);
      EXPECT_NE(result, 0) << call;
      EXPECT_NE(std::string(gpu().error()).find(call), std::string::npos) << gpu().error();
      EXPECT_EQ(held(), before + known->second) << call;
    }).join();
  }
  EXPECT_EQ(failed, (Calls{"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"}));
  close(fd);
  succeed(gpu().free(memory));
}

TEST(EveryFailure, OfFreeingOrUnmappingLeavesItToBeDoneAgain) {
  alignas(4096) static char page[4096];
  void *memory = nullptr, *address = nullptr;
  succeed(gpu().alloc(0, 5000, RD_GPU_SHARE_AUTO, &memory));
  succeed(gpu().host_map(page, sizeof page, &address));
  control<void(int)>("stand_in_fail")(7);  // the first lets captures be, and five set the device
  EXPECT_NE(refused(gpu().free(memory)).find("cudaFree"), std::string::npos);
  control<void(int)>("stand_in_fail")(2);  // likewise
  EXPECT_NE(refused(gpu().host_unmap(page)).find("cudaHostUnregister"), std::string::npos);
  succeed(gpu().free(memory));
  succeed(gpu().host_unmap(page));
}

// ---- what is queued

DeviceStep flag_step(DeviceVerb verb) {
  DeviceStep step;
  step.verb = verb;
  step.value = 1;
  return step;
}

DeviceStep data_step(DeviceVerb verb) {
  DeviceStep step;
  step.verb = verb;
  step.finish = true;
  step.from = {DeviceSpace::kInput, plan::kOwnRank, false, 0};
  step.to = {DeviceSpace::kOutput, plan::kOwnRank, false, 0};
  step.count = 16;
  return step;
}

// Rank 0 of two, whose peer has posted already: everything in pinned memory.
class Queued : public ::testing::Test {
 protected:
  Queued() {
    work_.world = 2;
    work_.blocks = 1;
    work_.epoch = reinterpret_cast<Epoch*>(at(0));
    work_.expired = reinterpret_cast<Expired*>(at(128));
    work_.abort = reinterpret_cast<uint32_t*>(at(1024));
    work_.stream_epoch = 1;
    work_.deadline_ns = 1'000'000'000;
    for (int r = 0; r < 2; ++r) {
      work_.input[r] = work_.output[r] = work_.stage[r] = work_.pushed[r] = at(4096 * (1 + r));
      work_.flags[r] = reinterpret_cast<Flags*>(at(16384));
    }
    work_.flags[0]->of[0][0][1].value = uint64_t{1} << 40;
    for (const DeviceStep& step :
         {flag_step(DeviceVerb::kPost), flag_step(DeviceVerb::kAwait), data_step(DeviceVerb::kCopy)}) {
      work_.step[work_.steps++] = step;
    }
    work_.step[0].peer = work_.step[1].peer = 1;
    adam_.world = 1;
    adam_.count = 8;
    adam_.gradients[0] = adam_.parameters[0] = reinterpret_cast<float*>(at(4096));
    adam_.state[0] = adam_.state[1] = reinterpret_cast<float*>(at(8192));
    adam_.abort = work_.abort;
    adam_.epoch = work_.epoch;
    codec_ = {at(4096), at(8192), 64, 64, DType::kF32, WireType::kInt8, true};
  }

  char* at(size_t offset) const { return static_cast<char*>(memory_.device) + offset; }
  int run(const Work& work, int executor = RD_GPU_STREAM, int element = static_cast<int>(DType::kF32),
          int reduce = 0) const {
    return gpu().run(&work, sizeof work, element, reduce, executor, stream_.handle());
  }

  const Pinned memory_{16384 + sizeof(Flags)};
  const TestStream stream_;
  Work work_{};
  AdamWork adam_{};
  CodecWork codec_{};
};

TEST_F(Queued, EveryFailureOfQueueing) {
  void* const stream = stream_.handle();
  int out = 0;
  expect_all(fail_each("run", [&] { return run(work_); }),
             {"cudaStreamIsCapturing", "cuStreamBatchMemOp", "launch_on_host_threads"});
  Work alone = work_;
  alone.world = 1;
  alone.step[0] = alone.step[2];
  alone.steps = 1;
  expect_all(fail_each("run", [&] { return run(alone, RD_GPU_SPIN); }), {"launch_on_host_threads"});
  expect_all(fail_each("adam_step", [&] { return gpu().adam_step(&adam_, sizeof adam_, stream); }),
             {"cudaDeviceGetAttribute", "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "launch_on_host_threads"});
  expect_all(fail_each("recode", [&] { return gpu().recode(&codec_, sizeof codec_, stream); }),
             {"cudaGetDevice", "launch_on_host_threads"});
  expect_all(fail_each("poison", [&] { return gpu().poison(at(4096), 100, work_.abort, stream); }),
             {"launch_on_host_threads"});
  expect_all(
      fail_each("pass_abort_on", [&] { return gpu().pass_abort_on(work_.abort, at(4096), at(8192), 1, stream); }),
      {"launch_on_host_threads"});
  const auto deliver = [&](size_t bytes, int past) {
    return fail_each("deliver", [&] { return gpu().deliver(at(4096), at(past), bytes, work_.abort, stream); });
  };
  expect_all(deliver(100, 0), {"launch_on_host_threads"});
  expect_all(deliver(100, 4), {"cudaMemcpyAsync", "launch_on_host_threads"});
  expect_all(fail_each("copy", [&] { return gpu().copy(at(8192), at(4096), 64, stream); }), {"cudaMemcpyAsync"});
  expect_all(fail_each("call",
                       [&] {
                         return gpu().call(
                             stream, [](void*) {}, nullptr);
                       }),
             {"cudaLaunchHostFunc"});
  const auto* const word = static_cast<const uint32_t*>(memory_.host);
  expect_all(fail_each("await", [&] { return gpu().await(word, 0, stream); }),
             {"cudaHostGetDevicePointer", "cuStreamWaitValue32"});
  expect_all(fail_each("write", [&] { return gpu().write(static_cast<uint32_t*>(memory_.host), 1, stream); }),
             {"cudaHostGetDevicePointer", "cuStreamWriteValue32"});
  expect_all(fail_each("copy_now", [&] { return gpu().copy_now(0, at(8192), at(4096), 64); }),
             {"cudaStreamCreateWithFlags", "cudaMemcpyAsync", "cudaStreamQuery"});
  void* made = nullptr;
  expect_all(fail_each(
                 "stream", [&] { return gpu().stream(0, &made); },
                 [&] { control<void(void*)>("stand_in_destroy_stream")(made); }),
             {"cudaDeviceGetStreamPriorityRange", "cudaStreamCreateWithPriority"});
  expect_all(fail_each("is_capturing", [&] { return gpu().is_capturing(stream, &out); }), {"cudaStreamIsCapturing"});
  expect_all(fail_each("count", [&] { return gpu().count(&out); }), {"cudaGetDeviceCount"});
  std::string text(4096, '\0');
  expect_all(fail_each("kernels", [&] { return gpu().kernels(text.data(), text.size()); }),
             {"cudaFuncGetAttributes", "cudaOccupancyMaxActiveBlocksPerMultiprocessor"});
  stream_.synchronize();
}

// A driver that does not say that it waits on streams does not.
TEST(EveryFailure, OfDescribingADevice) {
  std::set<std::string> failed;
  bool lacks_waits = false;
  for (int k = 1;; ++k) {
    rd_gpu_device facts;
    control<void(int)>("stand_in_fail")(k);
    const int result = gpu().describe(0, &facts);
    const char* const call = control<const char*()>("stand_in_failed")();
    control<void(int)>("stand_in_fail")(0);
    if (call == nullptr) break;
    failed.insert(call);
    if (result == 0) {
      EXPECT_STREQ(call, "cudaGetDriverEntryPointByVersion");
      EXPECT_FALSE(facts.waits_on_streams);
      lacks_waits = true;
    } else {
      EXPECT_EQ(fault_of(call, result, gpu().error()), "");
    }
  }
  EXPECT_TRUE(lacks_waits);
  expect_all(failed, {"cudaGetDeviceProperties", "cuDeviceGetAttribute", "cuDeviceGetUuid"});
}

// ---- refusals

struct Refusal {
  std::string named;
  std::function<int()> call;
};

void expect_refused(const std::vector<Refusal>& refusals) {
  for (const auto& [named, call] : refusals) {
    const std::string said = refused(call());
    EXPECT_NE(said.find(named), std::string::npos) << "wanted: " << named << "\nsaid: " << said;
  }
}

TEST(Refusals, OfMemory) {
  char mine[64];
  void* out = nullptr;
  int fd = -1;
  void* memory = nullptr;
  succeed(gpu().alloc(0, 5000, RD_GPU_SHARE_FD, &memory));
  rd_gpu_handle handle{}, foreign{}, beyond{};
  succeed(gpu().export_memory(memory, &handle, &fd));
  foreign = beyond = handle;
  foreign.key[0] ^= 1;
  beyond.offset = beyond.bytes;
  expect_refused({
      {"rd_gpu_alloc: out is null", [] { return gpu().alloc(0, 1, RD_GPU_SHARE_AUTO, nullptr); }},
      {"rd_gpu_alloc: sharing 7; it is ", [&] { return gpu().alloc(0, 1, 7, &out); }},
      {"rd_gpu_alloc: 0 bytes; ask for at least 1", [&] { return gpu().alloc(0, 0, RD_GPU_SHARE_FD, &out); }},
      {"rd_gpu_alloc: 18446744073709551615 bytes", [&] { return gpu().alloc(0, SIZE_MAX, RD_GPU_SHARE_FD, &out); }},
      {"rd_gpu_free: not the start of memory", [&] { return gpu().free(mine); }},
      {"rd_gpu_free: not the start of memory", [&] { return gpu().free(static_cast<char*>(memory) + 16); }},
      {"rd_gpu_export: out is null", [&] { return gpu().export_memory(memory, nullptr, &fd); }},
      {"rd_gpu_export: fd is null", [&] { return gpu().export_memory(memory, &handle, nullptr); }},
      {"rd_gpu_export: this memory is not of rd_gpu_alloc", [&] { return gpu().export_memory(mine, &handle, &fd); }},
      {"rd_gpu_import: handle is null", [&] { return gpu().import_memory(0, nullptr, fd, &out); }},
      {"rd_gpu_import: out is null", [&] { return gpu().import_memory(0, &handle, fd, nullptr); }},
      {"rd_gpu_import: offset 2097152 in an allocation of 2097152 bytes",
       [&] { return gpu().import_memory(0, &beyond, fd, &out); }},
      {"rd_gpu_import: this handle needs the descriptor", [&] { return gpu().import_memory(0, &foreign, -1, &out); }},
      {"rd_gpu_unimport: not memory from rd_gpu_import", [&] { return gpu().unimport_memory(mine); }},
      {"rd_gpu_host_alloc: host is null", [&] { return gpu().host_alloc(1, nullptr, &out); }},
      {"rd_gpu_host_alloc: device_address is null", [&] { return gpu().host_alloc(1, &out, nullptr); }},
      {"rd_gpu_host_alloc: 0 bytes; ask for at least 1", [&] { return gpu().host_alloc(0, &out, &out); }},
      {"rd_gpu_host_map: host is null", [&] { return gpu().host_map(nullptr, 4096, &out); }},
      {"rd_gpu_host_map: device_address is null", [&] { return gpu().host_map(mine, 4096, nullptr); }},
  });
  close(fd);
  succeed(gpu().free(memory));
}

TEST_F(Queued, WhatIsWrongIsRefusedByName) {
  void* const stream = stream_.handle();
  Work sums = work_;
  sums.step[2] = data_step(DeviceVerb::kSum);
  sums.step[2].from.rank = plan::kAllRanks;
  constexpr int kMax = static_cast<int>(ReduceOp::kMax);
  constexpr int kF32 = static_cast<int>(DType::kF32), kU8 = static_cast<int>(DType::kU8);
  char text[10];
  int version = 0;
  const rd_gpu_nccl_functions* functions = nullptr;
  expect_refused({
      {"rd_gpu_run: work is null", [&] { return gpu().run(nullptr, sizeof(Work), 0, 0, RD_GPU_SPIN, stream); }},
      {"rd_gpu_run: work of 8 bytes, where " + std::to_string(sizeof(Work)) + " are known",
       [&] { return gpu().run(&work_, 8, 0, 0, RD_GPU_SPIN, stream); }},
      {"element -1 is no ringdp::DType", [&] { return run(work_, RD_GPU_SPIN, -1); }},
      {"element 99 is no ringdp::DType", [&] { return run(work_, RD_GPU_SPIN, 99); }},
      {"reduce -1 is no ringdp::ReduceOp", [&] { return run(work_, RD_GPU_SPIN, kF32, -1); }},
      {"reduce 99 is no ringdp::ReduceOp", [&] { return run(work_, RD_GPU_SPIN, kF32, 99); }},
      {"rd_gpu_run: executor 7; it is RD_GPU_SPIN or RD_GPU_STREAM", [&] { return run(work_, 7); }},
      {"no kernel for MAX on float32; kernels do SUM and AVG on float32, float16, bfloat16, float64, int32, int64 and",
       [&] { return run(sums, RD_GPU_STREAM, kF32, kMax); }},
      {"no kernel for SUM on uint8", [&] { return run(sums, RD_GPU_STREAM, kU8); }},
      {"rd_gpu_adam_step: work is null", [&] { return gpu().adam_step(nullptr, sizeof(AdamWork), stream); }},
      {"rd_gpu_adam_step: work of 3 bytes", [&] { return gpu().adam_step(&adam_, 3, stream); }},
      {"rd_gpu_recode: work of 3 bytes", [&] { return gpu().recode(&codec_, 3, stream); }},
      {"rd_gpu_poison: memory is null", [&] { return gpu().poison(nullptr, 1, work_.abort, stream); }},
      {"rd_gpu_poison: abort is null", [&] { return gpu().poison(at(4096), 1, nullptr, stream); }},
      {"rd_gpu_deliver: memory is null", [&] { return gpu().deliver(nullptr, at(0), 1, work_.abort, stream); }},
      {"rd_gpu_deliver: from is null", [&] { return gpu().deliver(at(4096), nullptr, 1, work_.abort, stream); }},
      {"rd_gpu_deliver: abort is null", [&] { return gpu().deliver(at(4096), at(0), 1, nullptr, stream); }},
      {"rd_gpu_pass_abort_on: abort is null", [&] { return gpu().pass_abort_on(nullptr, at(0), at(0), 1, stream); }},
      {"rd_gpu_pass_abort_on: own is null",
       [&] { return gpu().pass_abort_on(work_.abort, nullptr, at(0), 1, stream); }},
      {"rd_gpu_pass_abort_on: received is null",
       [&] { return gpu().pass_abort_on(work_.abort, at(0), nullptr, 1, stream); }},
      {"rd_gpu_copy: to is null", [&] { return gpu().copy(nullptr, at(0), 1, stream); }},
      {"rd_gpu_copy: from is null", [&] { return gpu().copy(at(0), nullptr, 1, stream); }},
      {"rd_gpu_call: call is null", [&] { return gpu().call(stream, nullptr, nullptr); }},
      {"rd_gpu_await: host_word is null", [&] { return gpu().await(nullptr, 0, stream); }},
      {"rd_gpu_write: host_word is null", [&] { return gpu().write(nullptr, 0, stream); }},
      {"rd_gpu_copy_now: to is null", [&] { return gpu().copy_now(0, nullptr, at(0), 1); }},
      {"rd_gpu_copy_now: from is null", [&] { return gpu().copy_now(0, at(0), nullptr, 1); }},
      {"rd_gpu_stream: out is null", [] { return gpu().stream(0, nullptr); }},
      {"rd_gpu_swap_capture_mode: mode is null", [] { return gpu().swap_capture_mode(nullptr); }},
      {"rd_gpu_is_capturing: out is null", [&] { return gpu().is_capturing(stream, nullptr); }},
      {"rd_gpu_reduces: out is null", [] { return gpu().reduces(0, 0, nullptr); }},
      {"element 99 is no ringdp::DType", [&] { return gpu().reduces(99, 0, &version); }},
      {"rd_gpu_kernels: text is null", [] { return gpu().kernels(nullptr, 1); }},
      {"rd_gpu_kernels: give room for ", [&] { return gpu().kernels(text, sizeof text); }},
      {"rd_gpu_count: count is null", [] { return gpu().count(nullptr); }},
      {"rd_gpu_describe: out is null", [] { return gpu().describe(0, nullptr); }},
      {"rd_gpu_nccl: version is null", [&] { return gpu().nccl("", nullptr, &functions); }},
      {"rd_gpu_nccl: functions is null", [&] { return gpu().nccl("", &version, nullptr); }},
  });
}

TEST_F(Queued, NothingToDoQueuesNothing) {
  adam_.count = codec_.count = codec_.held = 0;
  control<void(int)>("stand_in_fail")(1);  // any call would fail
  EXPECT_EQ(gpu().adam_step(&adam_, sizeof adam_, stream_.handle()), 0);
  EXPECT_EQ(gpu().recode(&codec_, sizeof codec_, stream_.handle()), 0);
  EXPECT_EQ(gpu().copy(nullptr, nullptr, 0, stream_.handle()), 0);
  EXPECT_EQ(gpu().poison(nullptr, 0, nullptr, stream_.handle()), 0);
  EXPECT_EQ(gpu().deliver(nullptr, nullptr, 0, nullptr, stream_.handle()), 0);
  EXPECT_EQ(control<const char*()>("stand_in_failed")(), nullptr);
  control<void(int)>("stand_in_fail")(0);
}

}  // namespace
}  // namespace ringdp::gpu::testing
