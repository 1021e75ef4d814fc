// Stands in for pybind11 where bindings use the part of it that nearly all use: functions of a module with named
// arguments, defaults, a docstring and a call guard. What is not here does not compile, and is compiled with pybind11
// itself then.
#ifndef PYBIND11_THIN_BINDINGS_H
#define PYBIND11_THIN_BINDINGS_H

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace pybind11 {
inline namespace thin {}  // names of its own for the linker, beside pybind11's in the same object
}

#include "crossing.h"

namespace pybind11 {
namespace thin {

template <typename T>
inline constexpr bool crosses = false;
#define PYBIND11_THIN_CROSSES(...) \
  template <>                      \
  inline constexpr bool crosses<__VA_ARGS__> = true;
PYBIND11_THIN_TYPES(PYBIND11_THIN_CROSSES)

template <typename... T>
struct Types {
  static_assert((crosses<T> && ...), "a type that needs pybind11's own headers");
  static constexpr std::size_t size = sizeof...(T);
  static const Type* const* list() {
    static const Type* const types[] = {&type_of<T>()..., nullptr};
    return types;
  }
};

// What a function returns, as one value or as a tuple of several.
template <typename R>
struct Result : Types<R> {
  static constexpr bool is_tuple = false;
  static _object* cross(const Call& call, R& value) {
    void* const parts[] = {&value};
    return to_python(call, parts);
  }
};

template <>
struct Result<void> : Types<> {
  static constexpr bool is_tuple = false;
};

template <typename... T>
struct TupleResult : Types<T...> {
  static constexpr bool is_tuple = true;
  template <typename Tuple>
  static _object* cross(const Call& call, Tuple& value) {
    return std::apply(
        [&](T&... part) {
          void* const parts[] = {&part..., nullptr};
          return to_python(call, parts);
        },
        value);
  }
};

template <typename... T>
struct Result<std::tuple<T...>> : TupleResult<T...> {};
template <typename A, typename B>
struct Result<std::pair<A, B>> : TupleResult<A, B> {};

// Lends lvalue references, moves out of what was converted for this call alone otherwise: as pybind11's cast_op does.
template <typename Parameter>
Parameter pass(void* value) {
  using T = std::remove_reference_t<Parameter>;
  if constexpr (std::is_lvalue_reference_v<Parameter>) {
    return *static_cast<T*>(value);
  } else {
    return std::move(*static_cast<T*>(value));
  }
}

template <typename Guard, typename R, typename... Parameters, std::size_t... I>
_object* run(const Call& call, void* const* values, R (*target)(Parameters...), std::index_sequence<I...>) {
  const auto guarded = [&]() -> R {
    [[maybe_unused]] Guard guard;
    return target(pass<Parameters>(values[I])...);
  };
  if constexpr (std::is_void_v<R>) {
    guarded();
    return to_python(call, nullptr);
  } else {
    auto result = guarded();
    return Result<decltype(result)>::cross(call, result);
  }
}

template <typename Guard, typename R, typename... Parameters>
Call make_call(R (*target)(Parameters...)) {
  using Taken = Types<std::remove_cvref_t<Parameters>...>;
  using Given = Result<std::remove_cvref_t<R>>;
  const Thunk thunk = [](const Call& call, void* const* values) {
    const auto function = reinterpret_cast<R (*)(Parameters...)>(call.target);
    return run<Guard>(call, values, function, std::index_sequence_for<Parameters...>());
  };
  const auto erased = reinterpret_cast<void (*)()>(target);
  return {Taken::list(), Taken::size, Given::list(), Given::size, Given::is_tuple, erased, thunk};
}

struct none {};

template <typename T>
_object* default_value(T&& value) {
  using Plain = std::decay_t<T>;
  if constexpr (std::is_same_v<Plain, none> || std::is_same_v<Plain, std::nullopt_t>) {
    return new_none();
  } else {
    constexpr bool is_text = std::is_same_v<Plain, const char*> || std::is_same_v<Plain, char*>;
    using Crossing = std::conditional_t<is_text, std::string, Plain>;
    static_assert(crosses<Crossing>, "a default that needs pybind11's own headers");
    Crossing copy(std::forward<T>(value));
    return to_python(type_of<Crossing>(), &copy);
  }
}

struct arg_v;

struct arg {
  explicit arg(const char* name = nullptr) : argument{name, nullptr, true, true} {}
  template <typename T>
  arg_v operator=(T&& value) const;
  arg& noconvert(bool flag = true) {
    argument.convert = !flag;
    return *this;
  }
  arg& none(bool flag = true) {
    argument.none = flag;
    return *this;
  }
  Argument argument;
};

struct arg_v : arg {
  template <typename T>
  arg_v(const arg& base, T&& value) : arg(base) {
    argument.value = default_value(std::forward<T>(value));
  }
  arg_v(const arg_v&) = delete;
  arg_v& operator=(const arg_v&) = delete;
  ~arg_v() { drop(argument.value); }
};

template <typename T>
arg_v arg::operator=(T&& value) const {
  return arg_v(*this, std::forward<T>(value));
}

namespace literals {
inline arg operator""_a(const char* name, std::size_t) { return arg(name); }
}  // namespace literals

struct doc {
  explicit doc(const char* text) : value(text) {}
  const char* value;
};

class gil_scoped_release {
 public:
  gil_scoped_release() : released_(release_interpreter()) {}
  gil_scoped_release(const gil_scoped_release&) = delete;
  gil_scoped_release& operator=(const gil_scoped_release&) = delete;
  ~gil_scoped_release() { take_interpreter_back(released_); }

 private:
  void* released_;
};

template <typename Guard>
struct call_guard {};

// What the arguments of def() after the function say.
template <std::size_t num_arguments>
struct Extras {
  void note(const char* text) { doc = text; }
  void note(const thin::doc& text) { doc = text.value; }
  void note(const arg& extra) { arguments[filled++] = extra.argument; }
  template <typename Guard>
  void note(const call_guard<Guard>&) {}

  const char* doc = nullptr;
  Argument arguments[num_arguments + 1] = {};
  std::size_t filled = 0;
};

struct NoGuard {};
template <typename... Extra>
struct GuardOf {
  using type = NoGuard;
};
template <typename First, typename... Rest>
struct GuardOf<First, Rest...> : GuardOf<Rest...> {};
template <typename Guard, typename... Rest>
struct GuardOf<call_guard<Guard>, Rest...> {
  using type = Guard;
};

// Refers to pybind11's own module_, of which it knows nothing but the address.
class module_ {
 public:
  module_() = delete;
  module_(const module_&) = delete;
  module_& operator=(const module_&) = delete;

  template <typename Function, typename... Extra>
  module_& def(const char* name, Function&& function, const Extra&... extra) {
    add(name, +function, extra...);
    return *this;
  }

 private:
  template <typename R, typename... Parameters, typename... Extra>
  void add(const char* name, R (*target)(Parameters...), const Extra&... extra) {
    constexpr std::size_t num_arguments = (std::size_t{std::is_base_of_v<arg, Extra>} + ... + 0);
    static_assert(num_arguments == 0 || num_arguments == sizeof...(Parameters), "as many py::arg as parameters");
    Extras<num_arguments> extras;
    (extras.note(extra), ...);
    const Call call = make_call<typename GuardOf<Extra...>::type>(target);
    define(this, name, extras.doc, call, extras.arguments, num_arguments);
  }
};
using module = module_;

}  // namespace thin
}  // namespace pybind11

namespace py = pybind11;

#endif
