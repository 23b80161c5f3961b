// The reducer's error messages for a training loop that breaks the rules of data-parallel training. They name
// parameters; the key phrases are torch's own, which users search for and tests match.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace ringdp::reducer {

struct Circumstances {
  int rank = 0;
  bool static_graph = false;
  bool find_unused = false;
};

// "a.weight, a.bias and 12 more": names at most `most`.
constexpr size_t kMostNames = 50;
std::string listed(const std::vector<std::string>& names, size_t most = kMostNames);

// "the gradients of a.weight, a.bias and 12 more": for one bucket; `indices` select from all `names`.
std::string gradients_of(const std::vector<std::string>& names, const std::vector<size_t>& indices);

// Gradients of these parameters (and their indices) did not arrive before the next forward pass.
std::string unfinished(const Circumstances& now, const std::vector<std::string>& names,
                       const std::vector<size_t>& indices);

// An exception has ended a backward pass after its last gradient had arrived.
std::string interrupted();

// The first pass of a static graph has not completed.
std::string first_static_pass_unfinished();

// What to do after an exception: appended to errors about a backward pass that has not ended.
extern const char* const kAfterAnException;

// A gradient arrived a second time.
std::string marked_twice(const std::string& name, size_t index);

// A gradient was added to .grad outside of a synchronised pass, and an optimizer is about to use it or has used it.
std::string came_late(const std::string& name);

// A parameter's hook fired more often than in the first pass of a static graph.
std::string graph_changed(const std::string& name);

}  // namespace ringdp::reducer
