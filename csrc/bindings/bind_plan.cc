#include <pybind11/stl.h>

#include "backend/errors.h"
#include "base/settings.h"
#include "bindings/bind.h"
#include "collective/inspect.h"
#include "plan/catalog.h"
#include "plan/leaf_tree.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

plan::Plan make(const std::string& collective, const std::string& algorithm, const std::string& order, int rank,
                int world, int64_t count, int root, int64_t segment_bytes, const std::vector<int>& hosts,
                const std::string& wire, int64_t one_shot_bytes, bool in_heaps) {
  return backend::guarded([&] {
    Settings settings;
    set_field(settings, "algorithm", algorithm);
    set_field(settings, "order", order);
    set_field(settings, "wire", wire);
    plan::Problem problem;
    problem.what = plan::collective_named(collective);
    problem.rank = rank;
    problem.world = world;
    problem.count = count;
    problem.root = root;
    problem.segment_bytes = segment_bytes;
    problem.hosts = hosts;
    problem.wire = settings.wire;
    problem.one_shot_bytes = one_shot_bytes;
    problem.in_heaps = in_heaps;
    return plan::make_plan(settings.algorithm, settings.order, problem);
  });
}

template <class Print>
auto printer(Print print) {
  return [print](const std::string& collective, const std::string& algorithm, const std::string& order, int rank,
                 int world, int64_t count, int root, int64_t segment_bytes, const std::vector<int>& hosts,
                 const std::string& wire, int64_t one_shot_bytes, bool in_heaps) {
    return print(make(collective, algorithm, order, rank, world, count, root, segment_bytes, hosts, wire,
                      one_shot_bytes, in_heaps));
  };
}

template <class Print>
void def_printer(py::module_& m, const char* name, Print print) {
  m.def(name, printer(print), py::arg("collective"), py::arg("algorithm"), py::arg("order") = "rank",
        py::arg("rank") = 0, py::arg("world") = 2, py::arg("count") = 1024, py::arg("root") = 0,
        py::arg("segment_bytes") = Settings{}.segment_bytes, py::arg("hosts") = std::vector<int>{},
        py::arg("wire") = "fp32", py::arg("one_shot_bytes") = plan::Problem{}.one_shot_bytes,
        py::arg("in_heaps") = false);
}

const char* name_of(collective::RingEvent::Kind kind) {
  switch (kind) {
    case collective::RingEvent::Kind::kPartialSum:
      return "partial sum";
    case collective::RingEvent::Kind::kFinalSum:
      return "final sum";
    case collective::RingEvent::Kind::kCopy:
      break;
  }
  return "copy";
}

py::dict ring_walkthrough(const std::vector<std::vector<float>>& inputs, const std::string& order) {
  const collective::Walkthrough walk = backend::guarded([&] {
    Settings settings;
    set_field(settings, "order", order);
    return collective::walk_ring(inputs, settings.order);
  });
  py::list events, sent, rounds;
  for (const collective::RingEvent& event : walk.events) {
    py::dict d;
    d["kind"] = name_of(event.kind);
    d["rank"] = event.rank;
    d["round"] = event.round;
    d["begin"] = event.begin;
    d["values"] = event.values;
    events.append(d);
  }
  for (const trace::Totals& t : walk.totals) {
    sent.append(t.wire_bytes_sent);
    rounds.append(t.rounds);
  }
  py::dict d;
  d["events"] = events;
  d["results"] = walk.results;
  d["bytes_sent"] = sent;
  d["rounds"] = rounds;
  return d;
}

}  // namespace

void bind_plan(py::module_& m) {
  def_printer(m, "plan_text", [](const plan::Plan& p) { return collective::to_text(p); });
  m.def(
      "allot_leaves",
      [](const std::vector<int>& shares) { return backend::guarded([&] { return plan::allot(shares); }); },
      py::arg("shares"));
  m.def(
      "even_shares",
      [](int micro_batches, int ranks) {
        return backend::guarded([&] { return plan::even_shares(micro_batches, ranks); });
      },
      py::arg("micro_batches"), py::arg("ranks"));
  m.def(
      "leaf_roots",
      [](int micro_batches, const std::vector<int>& leaves) {
        std::vector<std::pair<int, int>> roots;
        for (const plan::LeafNode root : backend::guarded([&] { return plan::roots_of(micro_batches, leaves); })) {
          roots.emplace_back(root.begin, root.end);
        }
        return roots;
      },
      py::arg("micro_batches"), py::arg("leaves"));
  m.def("ring_walkthrough", &ring_walkthrough, py::arg("inputs"), py::arg("order") = "rotated");
  def_printer(m, "plan_json", [](const plan::Plan& p) { return collective::to_json(p); });
}

}  // namespace ringdp::bindings
