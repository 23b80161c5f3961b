// The fuzz targets (tests/fuzz) over their corpora, without a fuzzer: what was found once is not found again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "target.h"

namespace ringdp::fuzz {
namespace {

const std::filesystem::path kCorpora = FUZZ_CORPORA;

std::string content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Fuzz, EveryTargetKeepsItsPromisesOnItsCorpus) {
  EXPECT_GE(targets().size(), 12u);
  for (const Target& target : targets()) {
    int files = 0;
    for (const auto& file : std::filesystem::directory_iterator(kCorpora / target.name)) {
      const std::string bytes = content_of(file.path());
      EXPECT_NO_THROW(target.run({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})) << file.path();
      ++files;
    }
    EXPECT_GT(files, 0) << target.name;
  }
}

}  // namespace
}  // namespace ringdp::fuzz
