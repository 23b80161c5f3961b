// Host memory that devices map, at an address of their own: who gives a device the host's is found out.
//
// Private memory that is registered has one address only. Thread-safe; throws Refusal.
#pragma once
#include <cstddef>

namespace stand_in {

void* allocate_host(size_t bytes);
void free_host(void* memory);  // waits for all devices
void register_host(void* memory, size_t bytes);
void unregister_host(void* memory);
void* device_address_of(void* memory);  // of any byte
size_t pinned_bytes();                  // of allocate_host

}  // namespace stand_in
