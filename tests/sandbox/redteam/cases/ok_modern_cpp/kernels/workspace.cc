#include "pieces.hpp"

#include <cassert>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stdexcept>

namespace pieces {

Workspace& workspace() {
  static thread_local Workspace own;
  return own;
}

int64_t part_of(int64_t n, int parts) {
  static std::mutex guard;
  static std::once_flag told;
  const std::lock_guard<std::mutex> lock(guard);
  try {
    if (parts <= 0) throw std::invalid_argument("parts");
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return n;
  }
  std::call_once(told, [&] {
    std::ostringstream text;
    text << "parts of " << n;
    std::cout << text.str() << "\n";
  });
  assert(n >= 0);
  return (n + parts - 1) / parts;
}

}  // namespace pieces
