// What the reducer says when a training loop and the rules of data-parallel training do not fit: always with the names of
// the parameters. The key phrases are torch's own, which users search for and tests match.
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

// "a.weight, a.bias and 12 more"; `most`: how many are named.
constexpr size_t kMostNames = 50;
std::string listed(const std::vector<std::string>& names, size_t most = kMostNames);

// "the gradients of a.weight, a.bias and 12 more": those of one bucket, whose parameters have these indices among all `names`.
std::string gradients_of(const std::vector<std::string>& names, const std::vector<size_t>& indices);

// Gradients of these parameters (and their indices) did not arrive before the next forward pass.
std::string unfinished(const Circumstances& now, const std::vector<std::string>& names,
                       const std::vector<size_t>& indices);

// Of a static graph's first pass.
std::string never_learned();

// A gradient arrived a second time.
std::string marked_twice(const std::string& name, size_t index);

// A gradient was added to .grad outside of every synchronised pass, and somebody would step, or has stepped, with it.
std::string came_late(const std::string& name);

// A parameter's hook fired more often than in the first pass of a static graph.
std::string graph_changed(const std::string& name);

}  // namespace ringdp::reducer
