// The part of thin bindings that knows pybind11 and torch's casters: compiled once, linked into every module.
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include "crossing.h"

namespace pybind11::thin {

// Room for one argument on its way into C++.
struct alignas(std::max_align_t) Slot {
  std::byte bytes[64];
};

struct Value {
  virtual ~Value() = default;
  virtual bool load(handle source, bool convert) = 0;
  virtual void* get() = 0;
};

template <typename T>
struct ValueOf final : Value {
  bool load(handle source, bool convert) override { return caster.load(source, convert); }
  void* get() override { return &detail::cast_op<T&>(caster); }
  detail::make_caster<T> caster;
};

struct Type {
  const char* name;  // as it stands in a signature
  Value* (*make)(Slot& slot);
  handle (*cast)(void* value);
};

template <typename T>
const Type& type_of() {
  using Caster = detail::make_caster<T>;
  static_assert(sizeof(ValueOf<T>) <= sizeof(Slot) && alignof(ValueOf<T>) <= alignof(Slot));
  static_assert(decltype(Caster::name)::types().size() == 1, "no class that is registered later stands in the name");
  static constexpr Type type{
      Caster::name.text,
      [](Slot& slot) -> Value* { return new (&slot) ValueOf<T>; },
      [](void* value) -> handle {
        return Caster::cast(std::move(*static_cast<T*>(value)), return_value_policy::automatic, handle());
      },
  };
  return type;
}

#define PYBIND11_THIN_DEFINE(...) template const Type& type_of<__VA_ARGS__>();
PYBIND11_THIN_TYPES(PYBIND11_THIN_DEFINE)

// The arguments of one call, converted from left to right.
class Values {
 public:
  explicit Values(const Call& call) : slots_(call.num_parameters) {
    values_.reserve(slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) values_.push_back(call.parameters[i]->make(slots_[i]));
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values() {
    for (Value* value : values_) value->~Value();
  }

  bool load(detail::function_call& call) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (!values_[i]->load(call.args[i], call.args_convert[i])) return false;
    return true;
  }

  std::vector<void*> pointers() const {
    std::vector<void*> pointers;
    pointers.reserve(values_.size());
    for (Value* value : values_) pointers.push_back(value->get());
    return pointers;
  }

 private:
  std::vector<Slot> slots_;
  std::vector<Value*> values_;
};

static handle run(detail::function_call& called) {
  const Call& call = *static_cast<const Call*>(called.func.data[0]);
  Values values(call);
  if (!values.load(called)) return PYBIND11_TRY_NEXT_OVERLOAD;
  return call.thunk(call, values.pointers().data());
}

// "({torch.Tensor}, {float}) -> torch.Tensor", from which pybind11 makes the signature that a docstring begins with.
static std::string signature_of(const Call& call) {
  std::string text = "(";
  for (std::size_t i = 0; i < call.num_parameters; ++i)
    text.append(i == 0 ? "{" : ", {").append(call.parameters[i]->name).append("}");
  text += ") -> ";
  if (!call.returns_tuple) return text + (call.num_results == 0 ? "None" : call.results[0]->name);
  const std::string tuple = detail::make_caster<std::tuple<int>>::name.text;  // "tuple[int]", by version
  text += tuple.substr(0, tuple.find('[') + 1);
  for (std::size_t i = 0; i < call.num_results; ++i) text.append(i == 0 ? "" : ", ").append(call.results[i]->name);
  return text + (call.num_results == 0 ? "()]" : "]");
}

class Function : public cpp_function {
 public:
  Function(const module_& module, const char* label, const char* doc, const Call& call, const Argument* arguments,
           std::size_t num_arguments) {
    const object earlier = getattr(module, label, pybind11::none());
    auto owner = make_function_record();
    detail::function_record* record = owner.get();
    record->impl = &run;
    record->data[0] = new Call(call);
    record->free_data = [](detail::function_record* freed) { delete static_cast<Call*>(freed->data[0]); };
    record->nargs_pos = static_cast<std::uint16_t>(call.num_parameters);
    detail::process_attributes<pybind11::name, scope, sibling>::init(pybind11::name(label), scope(module), sibling(earlier),
                                                                      record);
    for (std::size_t i = 0; i < num_arguments; ++i) note(arguments[i], record);
    if (doc != nullptr) detail::process_attribute<const char*>::init(doc, record);
    static const std::type_info* const no_classes[] = {nullptr};
    initialize_generic(std::move(owner), signature_of(call).c_str(), no_classes, call.num_parameters);
  }

 private:
  static void note(const Argument& argument, detail::function_record* record) {
    arg named(argument.name);
    named.noconvert(!argument.convert).none(argument.none);
    if (argument.value == nullptr) {
      detail::process_attribute<arg>::init(named, record);
    } else {
      detail::process_attribute<arg_v>::init(arg_v(named, reinterpret_borrow<object>(argument.value)), record);
    }
  }
};

void define(void* module, const char* name, const char* doc, const Call& call, const Argument* arguments,
            std::size_t num_arguments) {
  module_& owner = *static_cast<module_*>(module);
  owner.add_object(name, Function(owner, name, doc, call, arguments, num_arguments), true);
}

PyObject* to_python(const Type& type, void* value) { return type.cast(value).ptr(); }

PyObject* to_python(const Call& call, void* const* results) {
  if (!call.returns_tuple) return call.num_results == 0 ? new_none() : to_python(*call.results[0], results[0]);
  std::vector<object> parts;
  for (std::size_t i = 0; i < call.num_results; ++i)
    parts.push_back(reinterpret_steal<object>(to_python(*call.results[i], results[i])));
  tuple whole(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i]) return nullptr;
    PyTuple_SET_ITEM(whole.ptr(), static_cast<ssize_t>(i), parts[i].release().ptr());
  }
  return whole.release().ptr();
}

PyObject* new_none() { return pybind11::none().release().ptr(); }

void drop(PyObject* object) { Py_XDECREF(object); }

void* release_interpreter() { return new gil_scoped_release(); }

void take_interpreter_back(void* released) { delete static_cast<gil_scoped_release*>(released); }

}  // namespace pybind11::thin
