// ringdp._C: a list of the rooms that Python sees.
#include "bindings/bind.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  ringdp::bindings::bind_settings(m);
  ringdp::bindings::bind_plan(m);
  ringdp::bindings::bind_device_plan(m);
  ringdp::bindings::bind_gpu(m);
  ringdp::bindings::bind_backend(m);
  ringdp::bindings::bind_reducer(m);
  ringdp::bindings::bind_zero(m);
}
