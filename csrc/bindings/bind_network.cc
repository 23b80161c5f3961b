#include "base/error.h"
#include "bindings/bind.h"
#include "transport/tcp/address.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

py::list interfaces() {
  py::list rows;
  for (const transport::Interface& found : transport::list_interfaces()) {
    py::dict d;
    d["name"] = found.name;
    d["address"] = found.address.host();
    d["megabits"] = transport::interface_speed(found.name);
    rows.append(d);
  }
  return rows;
}

std::string route_to(const std::string& host) {
  const auto route = transport::route_to(host);
  return route ? route->host() : "";
}

std::pair<std::string, std::string> choose_interface(const std::string& name, const std::string& route) {
  try {
    const transport::InterfacePreference preference{name, transport::SocketAddress::parse(route, 0)};
    const transport::Interface chosen = transport::choose_interface(transport::list_interfaces(), preference);
    return {chosen.name, chosen.address.host()};
  } catch (const Error& error) {
    throw py::value_error(error.what());
  }
}

}  // namespace

void bind_network(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("interfaces", &interfaces);
  m.def("route_to", &route_to, no_gil);
  m.def("choose_interface", &choose_interface);
}

}  // namespace ringdp::bindings
