// The driver interface, found by name.
#include <cuda.h>

#include <cstring>

#include "cuda/answered.h"
#include "stand_in/memory.h"

using namespace stand_in;

namespace {

struct Entry {
  const char* name;
  void* function;
};

template <class Function>
Entry entry(const char* name, Function* function) {
  return {name, reinterpret_cast<void*>(function)};
}

const Entry kEntries[] = {
    entry("cuGetErrorString", cuGetErrorString),
    entry("cuDeviceGetAttribute", cuDeviceGetAttribute),
    entry("cuPointerGetAttribute", cuPointerGetAttribute),
    entry("cuStreamWaitValue32", cuStreamWaitValue32),
    entry("cuStreamWaitValue64", cuStreamWaitValue64),
    entry("cuStreamWriteValue64", cuStreamWriteValue64),
    entry("cuMemCreate", cuMemCreate),
    entry("cuMemRelease", cuMemRelease),
    entry("cuMemExportToShareableHandle", cuMemExportToShareableHandle),
    entry("cuMemImportFromShareableHandle", cuMemImportFromShareableHandle),
    entry("cuMemAddressReserve", cuMemAddressReserve),
    entry("cuMemAddressFree", cuMemAddressFree),
    entry("cuMemMap", cuMemMap),
    entry("cuMemUnmap", cuMemUnmap),
    entry("cuMemSetAccess", cuMemSetAccess),
};

CUresult result_of(cudaError_t error) { return static_cast<CUresult>(error); }

template <class Word>
Word* word_at(CUdeviceptr address) {
  auto* const word = reinterpret_cast<Word*>(address);
  if (address % sizeof(Word) == 0 && is_device_memory(word, sizeof(Word))) return word;
  throw Refusal(cudaErrorInvalidValue, "no word that devices reach");
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return answered([&] {
    *found = cudaDriverEntryPointSymbolNotFound;
    for (const Entry& one : kEntries) {
      if (std::strcmp(one.name, name) != 0) continue;
      *function = one.function;
      *found = cudaDriverEntryPointSuccess;
    }
  });
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(result));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, int) {
  const bool waits = attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
  return result_of(answered([&] { *value = waits ? machine().stream_waits : machine().fd; }));
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr memory) {
  return result_of(answered([&] {
    const bool known = is_device_memory(reinterpret_cast<void*>(memory), 1);
    if (!known) throw Refusal(cudaErrorInvalidValue, "not device memory");
    *static_cast<int*>(value) = machine().ipc;
  }));
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, uint32_t value, unsigned) {
  return result_of(answered([&] { wait_value(known(stream), word_at<uint32_t>(word), value); }));
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr word, uint64_t value, unsigned) {
  return result_of(answered([&] {
    if (!machine().stream_waits) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has stream_waits");
    wait_value(known(stream), word_at<uint64_t>(word), value);
  }));
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr word, uint64_t value, unsigned) {
  return result_of(answered([&] {
    if (!machine().stream_waits) throw Refusal(cudaErrorNotSupported, "STAND_IN_LACKS has stream_waits");
    write_value(known(stream), word_at<uint64_t>(word), value);
  }));
}
