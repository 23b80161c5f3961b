// Steps of all ranks, judged: what ringdp.watch looks at.
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/bind.h"
#include "reducer/reducer.h"
#include "reducer/step_rows.h"
#include "trace/step_judge.h"

namespace py = pybind11;

namespace ringdp::bindings {
namespace {

using reducer::Reducer;
using reducer::StepRows;
using trace::StepJudge;
using trace::StepRow;

// ValueError where a peer has sent something else.
std::vector<StepRow> rows_of(const py::bytes& packed) {
  const std::string_view bytes = packed;
  if (bytes.size() % sizeof(StepRow) != 0) throw py::value_error(std::to_string(bytes.size()) + " bytes are no rows");
  std::vector<StepRow> rows(bytes.size() / sizeof(StepRow));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  if (!trace::are_times(rows)) throw py::value_error("a report with values that are not times of steps");
  return rows;
}

py::list dicts_of(const std::vector<StepJudge::Step>& steps) {
  py::list all;
  for (const auto& step : steps) {
    py::dict rows, waits;
    for (const auto& [rank, row] : step.rows) {
      rows[py::int_(rank)] =
          py::make_tuple(row.key, row.number, row.seconds, row.data, row.compute, row.exposed, row.communication);
    }
    for (const auto& [rank, wait] : step.waits) waits[py::int_(rank)] = wait;
    all.append(py::make_tuple(rows, waits));
  }
  return all;
}

py::list judged(StepJudge& self, const std::vector<size_t>& reporting) {
  py::list all;
  for (const auto& found : self.judge(reporting)) {
    all.append(py::make_tuple(found.late, found.usual, dicts_of(found.recent)));
  }
  return all;
}

py::tuple take_rows(StepRows& self, Reducer& reducer, int64_t stride) {
  if (stride < 1) throw py::value_error("StepRows.take: stride " + std::to_string(stride) + " (expected 1 or more)");
  StepRows::Taken taken;
  {
    const py::gil_scoped_release release;  // a thread that holds the reducer's lock may be waiting for the GIL
    taken = self.take(reducer.take_timelines(), stride);
  }
  const auto* bytes = reinterpret_cast<const char*>(taken.rows.data());
  return py::make_tuple(taken.seconds, py::bytes(bytes, taken.rows.size() * sizeof(StepRow)));
}

py::tuple sums_of(const py::bytes& rows) {
  const trace::StepSums sums = trace::sums_of(rows_of(rows));
  return py::make_tuple(sums.rows, sums.exposed, sums.communication);
}

}  // namespace

void bind_watch(py::module_& m) {
  py::class_<StepRows>(m, "StepRows")
      .def(py::init())
      .def("take", &take_rows, py::arg("reducer"), py::arg("stride"))
      .def_static("sums_of", &sums_of, py::arg("rows"));
  py::class_<StepJudge>(m, "StepJudge")
      .def(py::init<size_t>(), py::arg("ranks"))
      .def(
          "add", [](StepJudge& self, size_t rank, const py::bytes& rows) { return self.add(rank, rows_of(rows)); },
          py::arg("rank"), py::arg("rows"))
      .def("note_delay", &StepJudge::note_delay, py::arg("key"), py::arg("rank"), py::arg("lost"))
      .def(
          "reached", [](const StepJudge& self, const std::vector<size_t>& ranks) { return self.reached(ranks); },
          py::arg("reporting"))
      .def("number_of", &StepJudge::number_of, py::arg("key"))
      .def("judge", &judged, py::arg("reporting"))
      .def("forgotten", &StepJudge::forgotten);
}

}  // namespace ringdp::bindings
