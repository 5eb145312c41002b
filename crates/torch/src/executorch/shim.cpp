// The C interface through which tensorserve uses libexecutorch. It is compiled on the machine where it runs,
// against the headers of the libexecutorch that it runs with (`tensorserve fetch executorch`), because
// libexecutorch has a C++ interface only. crates/torch/src/executorch/ffi.rs declares the same functions.
//
// No exception leaves a function: each that may fail returns a `te_error`, or null. What a function returns by
// pointer belongs to the caller, until the function of its name ends its life.
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#define TE_EXPORT extern "C" __attribute__((visibility("default")))

namespace et = executorch::runtime;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::BufferDataLoader;
using executorch::extension::MallocMemoryAllocator;
using executorch::extension::threadpool::NoThreadPoolGuard;

namespace {

// The revision of this interface.
constexpr uint32_t kInterface = 1;

// Codes of errors.
enum Code : int32_t { kInvalid = 1, kMemory = 2, kData = 3, kUnsupported = 4, kInternal = 5 };

// What vectorized kernels want their memory to be aligned to.
constexpr size_t kAlignment = 64;

struct Failure : std::runtime_error {
  Code code;
  Failure(Code code, const std::string& text) : std::runtime_error(text), code(code) {}
};

// The first error that libexecutorch has logged on this thread since the last call began: its functions
// return numbers only.
thread_local std::string logged;

void log_message(
    et_timestamp_t,
    et_pal_log_level_t level,
    const char*,
    const char*,
    size_t,
    const char* message,
    size_t length) {
  if (level == et_pal_log_level_t::kFatal) {
    // The process ends after it.
    std::fprintf(stderr, "libexecutorch: %.*s\n", static_cast<int>(length), message);
  } else if (level == et_pal_log_level_t::kError && logged.empty()) {
    logged.assign(message, length);
  }
}

Code code_of(et::Error error, Code otherwise) {
  switch (error) {
    case et::Error::NotSupported:
    case et::Error::NotImplemented:
    case et::Error::OperatorMissing:
    case et::Error::NotFound:
    case et::Error::DelegateInvalidCompatibility:
      return kUnsupported;
    case et::Error::MemoryAllocationFailed:
    case et::Error::OutOfResources:
      return kMemory;
    case et::Error::InvalidProgram:
    case et::Error::InvalidExternalData:
      return kData;
    default:
      return otherwise;
  }
}

void check(et::Error error, Code otherwise) {
  if (error == et::Error::Ok) {
    return;
  }
  std::string text = logged;
  if (text.empty()) {
    text = std::string("libexecutorch failed with ") + et::to_string(error);
  }
  throw Failure(code_of(error, otherwise), text);
}

template <typename T>
T& checked(et::Result<T>& result, Code otherwise) {
  check(result.error(), otherwise);
  return result.get();
}

// Zeroed memory, whose pages the system provides when they are written.
struct Memory {
  std::unique_ptr<void, decltype(&std::free)> whole{nullptr, &std::free};
  uint8_t* data = nullptr;
  size_t size = 0;

  explicit Memory(size_t bytes) : size(bytes) {
    if (bytes > SIZE_MAX - kAlignment) {
      throw std::bad_alloc();
    }
    whole.reset(std::calloc(bytes + kAlignment, 1));
    if (whole == nullptr) {
      throw std::bad_alloc();
    }
    const auto address = reinterpret_cast<uintptr_t>(whole.get());
    data = reinterpret_cast<uint8_t*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
};

}  // namespace

extern "C" {

struct te_error {
  int32_t code;
  char* text;
};

// A tensor, in C order if it is an input. `dtype` is the number of the ScalarType.
struct te_view {
  const void* data;
  const int32_t* dims;
  size_t rank;
  size_t bytes;
  int32_t dtype;
};

}  // extern "C"

// A program in the memory of the caller.
struct te_program {
  BufferDataLoader loader;
  std::optional<et::Program> program;

  te_program(const void* data, size_t size) : loader(data, size) {}
};

// A method with the memory of one run.
struct te_method {
  MallocMemoryAllocator values;
  MallocMemoryAllocator temporary;
  std::vector<Memory> planned;
  std::vector<et::Span<uint8_t>> spans;
  std::optional<et::HierarchicalAllocator> hierarchy;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;
  // Memory for the inputs that the program itself has none for, or wants in another order; and for such
  // outputs.
  std::vector<std::optional<Memory>> inputs;
  std::vector<std::optional<Memory>> outputs;
  bool is_single = false;
};

namespace {

te_error* failed(Code code, const std::string& text) noexcept {
  auto* error = static_cast<te_error*>(std::malloc(sizeof(te_error)));
  if (error != nullptr) {
    error->code = code;
    error->text = static_cast<char*>(std::malloc(text.size() + 1));
    if (error->text != nullptr) {
      std::memcpy(error->text, text.c_str(), text.size() + 1);
    }
  }
  return error;
}

// Calls `body`, and turns what it throws into an error.
template <typename Body>
te_error* guarded(Body body) noexcept {
  try {
    logged.clear();
    body();
    return nullptr;
  } catch (const Failure& e) {
    return failed(e.code, e.what());
  } catch (const std::bad_alloc&) {
    return failed(kMemory, "there is not enough memory");
  } catch (const std::exception& e) {
    return failed(kInternal, e.what());
  } catch (...) {
    return failed(kInternal, "libexecutorch threw an object that is no exception");
  }
}

// Keeps the operations of this thread from using libexecutorch's threads.
struct Threads {
  std::optional<NoThreadPoolGuard> guard;
  explicit Threads(bool is_single) {
    if (is_single) {
      guard.emplace();
    }
  }
};

template <typename Order>
bool is_c_order(const Order& order) {
  for (size_t axis = 0; axis < order.size(); ++axis) {
    if (order[axis] != axis) {
      return false;
    }
  }
  return true;
}

// Copies a tensor between C order and the order of its dimensions in memory, `order`; into C order if
// `to_c`. All have the shape `dims`, and elements of `width` bytes.
template <typename Dims, typename Order>
void reorder(
    const uint8_t* from, uint8_t* to, const Dims& dims, const Order& order, size_t width, bool to_c) {
  const size_t rank = dims.size();
  std::vector<size_t> ours(rank), theirs(rank), index(rank, 0);
  size_t step = 1, count = 1;
  for (size_t axis = rank; axis-- > 0;) {
    ours[axis] = step;
    step *= static_cast<size_t>(dims[axis]);
  }
  count = step;
  step = 1;
  for (size_t place = rank; place-- > 0;) {
    theirs[order[place]] = step;
    step *= static_cast<size_t>(dims[order[place]]);
  }
  for (size_t done = 0; done < count; ++done) {
    size_t a = 0, b = 0;
    for (size_t axis = 0; axis < rank; ++axis) {
      a += index[axis] * ours[axis];
      b += index[axis] * theirs[axis];
    }
    std::memcpy(to + (to_c ? a : b) * width, from + (to_c ? b : a) * width, width);
    for (size_t axis = rank; axis-- > 0;) {
      if (++index[axis] < static_cast<size_t>(dims[axis])) {
        break;
      }
      index[axis] = 0;
    }
  }
}

void load(const et::Program& program, const char* name, te_method& made) {
  auto found = program.method_meta(name);
  const et::MethodMeta& meta = checked(found, kData);
  for (size_t index = 0; index < meta.num_memory_planned_buffers(); ++index) {
    auto size = meta.memory_planned_buffer_size(index);
    const int64_t bytes = checked(size, kData);
    if (bytes < 0) {
      throw Failure(kData, "the program has a buffer of negative size");
    }
    made.planned.emplace_back(static_cast<size_t>(bytes));
    made.spans.emplace_back(made.planned.back().data, made.planned.back().size);
  }
  made.hierarchy.emplace(et::Span<et::Span<uint8_t>>(made.spans.data(), made.spans.size()));
  made.manager.emplace(&made.values, &*made.hierarchy, &made.temporary);
  Threads threads(made.is_single);
  auto loaded = program.load_method(name, &*made.manager);
  check(loaded.error(), kData);
  made.method.emplace(std::move(loaded.get()));
  for (size_t index = 0; index < meta.num_inputs(); ++index) {
    made.inputs.emplace_back();
    auto tag = meta.input_tag(index);
    if (checked(tag, kData) != et::Tag::Tensor) {
      // The program has been exported for the value that it has itself.
      check(made.method->set_input(made.method->get_input(index), index), kUnsupported);
      continue;
    }
    auto tensor = meta.input_tensor_meta(index);
    const et::TensorInfo& info = checked(tensor, kData);
    // A run may write to an input without memory of the program.
    if (!info.is_memory_planned() || !is_c_order(info.dim_order())) {
      made.inputs.back().emplace(info.nbytes());
    }
  }
  for (size_t index = 0; index < meta.num_outputs(); ++index) {
    made.outputs.emplace_back();
    auto tag = meta.output_tag(index);
    if (checked(tag, kData) != et::Tag::Tensor) {
      continue;
    }
    auto tensor = meta.output_tensor_meta(index);
    const et::TensorInfo& info = checked(tensor, kData);
    const void* memory = made.method->get_output(index).toTensor().const_data_ptr();
    if (!info.is_memory_planned() && memory == nullptr) {
      Memory& own = made.outputs.back().emplace(info.nbytes());
      check(made.method->set_output_data_ptr(own.data, own.size, index), kData);
    }
  }
}

void set_input(te_method& model, const te_view& given, size_t index) {
  if (index >= model.inputs.size()) {
    throw Failure(kInternal, "the program has no such input");
  }
  auto found = model.method->method_meta().input_tensor_meta(index);
  const et::TensorInfo& info = checked(found, kData);
  if (static_cast<int32_t>(info.scalar_type()) != given.dtype || info.sizes().size() != given.rank) {
    throw Failure(kInvalid, "an input has another type or rank than the program");
  }
  std::vector<int32_t> dims(given.dims, given.dims + given.rank);
  std::vector<uint8_t> order(info.dim_order().begin(), info.dim_order().end());
  if (order.size() != given.rank) {
    throw Failure(kData, "the program has an input without an order of its dimensions");
  }
  std::vector<int32_t> strides(given.rank);
  if (given.rank > 0) {
    check(
        et::dim_order_to_stride(dims.data(), order.data(), given.rank, strides.data()), kData);
  }
  const void* data = given.data;
  if (model.inputs[index].has_value()) {
    Memory& own = *model.inputs[index];
    if (given.bytes > own.size) {
      throw Failure(kInvalid, "an input is larger than the program's");
    }
    const auto* from = static_cast<const uint8_t*>(given.data);
    if (is_c_order(order)) {
      std::memcpy(own.data, from, given.bytes);
    } else {
      reorder(from, own.data, dims, order, et::elementSize(info.scalar_type()), false);
    }
    data = own.data;
  }
  TensorImpl impl(
      info.scalar_type(),
      static_cast<ssize_t>(given.rank),
      dims.data(),
      const_cast<void*>(data),
      order.data(),
      strides.data());
  check(model.method->set_input(et::EValue(Tensor(&impl)), index), kInvalid);
}

}  // namespace

TE_EXPORT uint32_t te_interface() {
  return kInterface;
}

// The size of the libexecutorch.so that this was compiled for.
TE_EXPORT uint64_t te_library_size() {
  return LIBRARY_SIZE;
}

// Must be called once, before all others.
TE_EXPORT void te_start() {
  et::register_pal(et::PalImpl::create(log_message, __FILE__));
  et::runtime_init();
}

TE_EXPORT void te_free_error(te_error* error) {
  if (error != nullptr) {
    std::free(error->text);
    std::free(error);
  }
}

// Verifies the program in `data`, which must be aligned to 16 bytes, and live longer than it.
TE_EXPORT te_error* te_open(const void* data, size_t size, te_program** opened) {
  return guarded([&] {
    auto made = std::make_unique<te_program>(data, size);
    auto program =
        et::Program::load(&made->loader, et::Program::Verification::InternalConsistency);
    check(program.error(), kData);
    made->program.emplace(std::move(program.get()));
    *opened = made.release();
  });
}

TE_EXPORT void te_close(te_program* program) {
  delete program;
}

// Loads a method, with memory for one run at a time; `is_single` if its operations must not use
// libexecutorch's threads. The program must live longer.
TE_EXPORT te_error* te_load(
    const te_program* program, const char* name, int32_t is_single, te_method** loaded) {
  return guarded([&] {
    auto made = std::make_unique<te_method>();
    made->is_single = is_single != 0;
    load(*program->program, name, *made);
    *loaded = made.release();
  });
}

TE_EXPORT void te_unload(te_method* method) {
  delete method;
}

// Runs a method with `count` inputs, each with its number in the program.
TE_EXPORT te_error* te_run(
    te_method* model, const te_view* inputs, const size_t* places, size_t count) {
  return guarded([&] {
    Threads threads(model->is_single);
    for (size_t index = 0; index < count; ++index) {
      set_input(*model, inputs[index], places[index]);
    }
    check(model->method->execute(), kInvalid);
  });
}

// Describes the output number `index` of the last run. What it points to lives until the next run.
TE_EXPORT te_error* te_output(te_method* model, size_t index, te_view* output) {
  return guarded([&] {
    if (index >= model->outputs.size() || !model->method->get_output(index).isTensor()) {
      throw Failure(kInternal, "the program has not returned this output");
    }
    const Tensor& tensor = model->method->get_output(index).toTensor();
    output->data = nullptr;
    output->dims = tensor.sizes().data();
    output->rank = tensor.sizes().size();
    output->bytes = tensor.nbytes();
    output->dtype = static_cast<int32_t>(tensor.scalar_type());
  });
}

// Copies that output to `target`, which has as many bytes, in C order.
TE_EXPORT te_error* te_copy(te_method* model, size_t index, void* target) {
  return guarded([&] {
    const Tensor& tensor = model->method->get_output(index).toTensor();
    const auto* from = static_cast<const uint8_t*>(tensor.const_data_ptr());
    if (tensor.nbytes() == 0) {
      return;
    }
    if (from == nullptr) {
      throw Failure(kInternal, "the program has not written this output");
    }
    auto* to = static_cast<uint8_t*>(target);
    if (is_c_order(tensor.dim_order())) {
      std::memcpy(to, from, tensor.nbytes());
    } else {
      const size_t width = et::elementSize(tensor.scalar_type());
      reorder(from, to, tensor.sizes(), tensor.dim_order(), width, true);
    }
  });
}
