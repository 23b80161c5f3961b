#include "trace/pickle.h"

#include <utility>

namespace ringdp::trace {
namespace {

void append_little_endian(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> (8 * i));
}

}  // namespace

Pickle::Pickle() : bytes_("\x80\x02") {}  // PROTO 2

void Pickle::add(int64_t number) {
  bytes_ += "\x8a\x08";  // LONG1 of 8 bytes, two's complement
  append_little_endian(bytes_, static_cast<uint64_t>(number), 8);
}

void Pickle::add(std::string_view text) {
  bytes_ += 'X';  // BINUNICODE
  append_little_endian(bytes_, text.size(), 4);
  bytes_ += text;
}

void Pickle::add_bool(bool value) { bytes_ += value ? '\x88' : '\x89'; }

void Pickle::add_none() { bytes_ += 'N'; }

void Pickle::begin_list() { bytes_ += "]("; }  // EMPTY_LIST, MARK

void Pickle::end_list() { bytes_ += 'e'; }  // APPENDS

void Pickle::begin_dict() { bytes_ += "}("; }  // EMPTY_DICT, MARK

void Pickle::end_dict() { bytes_ += 'u'; }  // SETITEMS

void Pickle::begin_tuple() { bytes_ += '('; }  // MARK

void Pickle::end_tuple() { bytes_ += 't'; }  // TUPLE

std::string Pickle::finish() {
  bytes_ += '.';  // STOP
  return std::exchange(bytes_, {});
}

}  // namespace ringdp::trace
