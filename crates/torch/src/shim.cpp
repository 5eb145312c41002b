// The C interface through which tensorserve uses libtorch. It is compiled on the machine where it runs,
// against the headers of the libtorch that it runs with (`tensorserve fetch torch`), because libtorch has a
// C++ interface only, which changes with each version. crates/torch/src/ffi.rs declares the same functions.
//
// No exception leaves a function: each that may fail returns a `ts_error`, or null. What a function returns by
// pointer belongs to the caller, until the function of its name ends its life.
#include <torch/script.h>

#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/custom_operator.h>
#include <torch/cuda.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

// The number of threads of OpenMP regions that the calling thread begins. It is a function of libgomp, with
// which libtorch is linked; null where it is linked with another library.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace {

// The revision of this interface.
constexpr uint32_t kInterface = 2;

// Codes of errors.
enum Code : int32_t { kInvalid = 1, kMemory = 2, kData = 3, kUnsupported = 4, kInternal = 5, kDeadline = 6 };

struct Failure : std::runtime_error {
  Code code;
  Failure(Code code, const std::string& text) : std::runtime_error(text), code(code) {}
};

char* copied(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) {
    std::memcpy(copy, text.c_str(), text.size() + 1);
  }
  return copy;
}

}  // namespace

extern "C" {

struct ts_error {
  int32_t code;
  char* text;
};

// A tensor in the memory of the caller, or, of an output, in that of libtorch. `dtype` is the number of
// the c10::ScalarType.
struct ts_view {
  const void* data;
  const int64_t* dims;
  size_t rank;
  size_t bytes;
  int32_t dtype;
};

// An input: the number of the argument of `forward`, and the key if that is a dictionary.
struct ts_input {
  ts_view tensor;
  size_t argument;
  const char* key;
};

}  // extern "C"

namespace {

ts_error* failed(Code code, const std::string& text) noexcept {
  auto* error = static_cast<ts_error*>(std::malloc(sizeof(ts_error)));
  if (error != nullptr) {
    error->code = code;
    error->text = copied(text);
  }
  return error;
}

// Calls `body`, and turns what it throws into an error, whose code is `code` unless the exception says more.
template <typename Body>
ts_error* guarded(Code code, Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Failure& e) {
    return failed(e.code, e.what());
  } catch (const c10::OutOfMemoryError& e) {
    return failed(kMemory, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return failed(kUnsupported, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return failed(code, e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return failed(kMemory, "there is not enough memory");
  } catch (const std::exception& e) {
    return failed(code, e.what());
  } catch (...) {
    return failed(code, "libtorch threw an object that is no exception");
  }
}

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += static_cast<char>(c);
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      json += escape;
    } else {
      json += static_cast<char>(c);
    }
  }
  return json + '"';
}

// Limits the threads of an operation that this thread runs; 0 leaves them to libtorch. OpenMP has this
// setting for each thread, so that models with different numbers run at the same time.
void limit_threads(int32_t threads) {
  thread_local int initial = at::get_num_threads();
  thread_local int current = initial;
  const int wanted = threads > 0 ? threads : initial;
  if (wanted == current) {
    return;
  }
  if (omp_set_num_threads != nullptr) {
    omp_set_num_threads(wanted);
  } else {
    at::set_num_threads(wanted);
  }
  current = wanted;
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// --- TorchScript: what an input is, judging by the first operation that takes it ---------------

using torch::jit::Value;

std::optional<c10::IValue> constant(const Value* value, const torch::jit::Module& module, int depth = 0) {
  const torch::jit::Node* node = value->node();
  if (depth > 64) {
    return std::nullopt;
  }
  if (node->kind() == c10::prim::Constant) {
    return torch::jit::toIValue(value);
  }
  if (node->kind() == c10::prim::Param) {
    return value->offset() == 0 ? std::optional<c10::IValue>(module._ivalue()) : std::nullopt;
  }
  if (node->kind() != c10::prim::GetAttr) {
    return std::nullopt;
  }
  auto object = constant(node->inputs()[0], module, depth + 1);
  if (!object || !object->isObject()) {
    return std::nullopt;
  }
  const auto& name = node->s(c10::attr::name);
  auto slot = object->toObject()->type()->findAttributeSlot(name);
  return slot ? std::optional<c10::IValue>(object->toObject()->getSlot(*slot)) : std::nullopt;
}

std::optional<at::Tensor> weight(const torch::jit::Node* node, size_t index, const torch::jit::Module& module) {
  if (node->inputs().size() <= index) {
    return std::nullopt;
  }
  auto value = constant(node->inputs()[index], module);
  return value && value->isTensor() ? std::optional<at::Tensor>(value->toTensor()) : std::nullopt;
}

// What is known of an input.
struct Guess {
  std::optional<at::ScalarType> dtype;
  // Of the last dimension; -1 if it is not known.
  int64_t features = -1;
  // Of a convolution: the dimensions in all, and the channels.
  int64_t rank = 0;
  int64_t channels = -1;
};

Guess guess(const Value* input, const torch::jit::Module& module, int depth = 0) {
  Guess known;
  for (const torch::jit::Use& use : input->uses()) {
    const torch::jit::Node* node = use.user;
    const std::string op = node->kind().toQualString();
    if (op == "aten::embedding" && use.offset == 1) {
      known.dtype = at::kLong;
    } else if (op == "aten::linear" && use.offset == 0) {
      if (auto matrix = weight(node, 1, module); matrix && matrix->dim() == 2) {
        known.features = matrix->size(1);
        known.dtype = matrix->scalar_type();
      }
    } else if ((op == "aten::conv1d" || op == "aten::conv2d" || op == "aten::conv3d" ||
                op == "aten::_convolution") && use.offset == 0) {
      auto kernel = weight(node, 1, module);
      auto groups = node->inputs().empty() ? std::nullopt
          : constant(node->inputs()[op == "aten::_convolution" ? 8 : 6], module);
      if (kernel && kernel->dim() > 2 && groups && groups->isInt()) {
        known.rank = kernel->dim();
        known.channels = kernel->size(1) * groups->toInt();
        known.dtype = kernel->scalar_type();
      }
    } else if ((op == "aten::contiguous" || op == "aten::relu" || op == "aten::dropout") && depth < 8) {
      known = guess(node->outputs()[0], module, depth + 1);
    }
    if (known.dtype) {
      break;
    }
  }
  return known;
}

bool is_true(const Value* value, const torch::jit::Module& module) {
  auto known = constant(value, module);
  return !known || !known->isBool() || known->toBool();
}

// Whether the value belongs to the module, or is a view of what does.
bool is_state(const Value* value) {
  for (int depth = 0; depth < 64; ++depth) {
    const torch::jit::Node* node = value->node();
    if (node->kind() == c10::prim::GetAttr) {
      return true;
    }
    const auto* schema = node->maybeSchema();
    const bool is_view = schema != nullptr && !schema->returns().empty() &&
        schema->returns()[0].alias_info() != nullptr && !node->inputs().empty();
    if (!is_view) {
      return false;
    }
    value = node->inputs()[0];
  }
  return true;
}

// What runs of these blocks do, as far as it matters to a server.
struct Effects {
  // They may write into the tensors that they take.
  bool writes_inputs = false;
  // They may change the module.
  bool writes_state = false;
  // They draw random numbers.
  bool is_random = false;

  bool is_everything() const { return writes_inputs && writes_state && is_random; }
};

bool draws(const torch::jit::Node* node, const torch::jit::Module& module) {
  static const std::set<std::string> kinds = {
      "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli",
      "bernoulli_", "multinomial", "normal", "normal_", "poisson", "uniform_", "exponential_", "geometric_",
      "cauchy_", "log_normal_", "random_", "binomial", "native_dropout"};
  const std::string op = node->kind().toUnqualString();
  if (kinds.count(op) > 0) {
    return true;
  }
  const bool is_dropout = op.find("dropout") != std::string::npos || op.find("rrelu") != std::string::npos;
  if (!is_dropout) {
    return false;
  }
  for (const Value* input : node->inputs()) {
    if (input->type()->kind() == c10::TypeKind::BoolType && is_true(input, module)) {
      return true;
    }
  }
  return false;
}

void observe(
    c10::ArrayRef<const torch::jit::Block*> blocks, const torch::jit::Module& module, Effects& effects,
    int depth = 0) {
  if (depth > 200) {
    effects = {true, true, true};
  }
  for (const torch::jit::Block* block : blocks) {
    for (const torch::jit::Node* node : block->nodes()) {
      if (effects.is_everything()) {
        return;
      }
      const auto kind = node->kind();
      if (kind == c10::prim::CallMethod || kind == c10::prim::CallFunction || kind == c10::prim::PythonOp) {
        effects = {true, true, true};
        return;
      }
      effects.writes_state |= kind == c10::prim::SetAttr;
      effects.writes_inputs |= kind == c10::prim::SetAttr;
      effects.is_random |= draws(node, module);
      const auto* schema = node->maybeSchema();
      if (schema != nullptr && schema->is_mutable()) {
        effects.writes_inputs = true;
        for (size_t i = 0; i < schema->arguments().size() && i < node->inputs().size(); ++i) {
          const auto* alias = schema->arguments()[i].alias_info();
          effects.writes_state |= alias != nullptr && alias->isWrite() && is_state(node->inputs()[i]);
        }
      }
      observe(node->blocks(), module, effects, depth + 1);
    }
  }
}

using Clock = std::chrono::steady_clock;

// When a run must end. The threads that a run starts itself know it, too.
struct TimeLimit : c10::DebugInfoBase {
  explicit TimeLimit(Clock::time_point at) : end(at) {}
  const Clock::time_point end;
  std::atomic<bool> is_over{false};
};

const auto kTimeLimit = c10::DebugInfoKind::INFERENCE_CONTEXT;

// Ends the run of this thread if its time is over. Loops call it in each iteration: nothing else of libtorch can be
// interrupted from outside.
void check_time(torch::jit::Stack&) {
  auto* limit = static_cast<TimeLimit*>(c10::ThreadLocalDebugInfo::get(kTimeLimit));
  if (limit != nullptr && Clock::now() >= limit->end) {
    limit->is_over = true;
    throw std::runtime_error("the time of the run is over");
  }
}

torch::jit::RegisterOperators time_operator({torch::jit::Operator(
    "tensorserve::check_time() -> ()", check_time, c10::AliasAnalysisKind::CONSERVATIVE)});

// Makes all loops of these blocks check the time.
void limit_loops(torch::jit::Graph& graph, c10::ArrayRef<torch::jit::Block*> blocks, bool& has_loops) {
  static const auto name = c10::Symbol::fromQualString("tensorserve::check_time");
  for (torch::jit::Block* block : blocks) {
    for (torch::jit::Node* node : block->nodes()) {
      limit_loops(graph, node->blocks(), has_loops);
      if (node->kind() == c10::prim::Loop) {
        has_loops = true;
        node->blocks()[0]->prependNode(graph.create(name, 0));
      }
    }
  }
}

// Makes all loops of a module check the time, also those of its functions and classes.
bool limit_loops(const torch::jit::Module& module) {
  bool has_loops = false;
  for (torch::jit::Function* function : module._ivalue()->compilation_unit()->get_functions()) {
    if (auto* made = torch::jit::tryToGraphFunction(*function)) {
      limit_loops(*made->graph(), {made->graph()->block()}, has_loops);
    }
  }
  return has_loops;
}

}  // namespace

// A module in memory, on a device.
struct ts_model {
  virtual ~ts_model() = default;
  virtual std::string describe() = 0;
  virtual c10::IValue run(std::vector<c10::IValue> arguments) = 0;
  virtual const std::vector<c10::Argument>& arguments() const = 0;
  // Whether a run may write into its inputs.
  bool writes_inputs = true;
  // Whether a run can be ended.
  bool has_limited_loops = false;
  // Whether what a run leaves behind on a GPU matters to the next one, so that both must be in one stream.
  bool needs_order = true;
  c10::Device device = c10::kCPU;
};

namespace {

struct Script : ts_model {
  torch::jit::Module module;
  std::unique_ptr<torch::jit::Method> forward;
  std::vector<c10::Argument> schema;
  std::shared_ptr<torch::jit::Graph> inlined;
  Effects effects;

  Script(const char* path, c10::Device on) {
    device = on;
    module = torch::jit::load(path, on);
    module.eval();
    auto method = module.find_method("forward");
    if (!method) {
      throw Failure(kUnsupported, "the module has no method forward");
    }
    forward = std::make_unique<torch::jit::Method>(*method);
    const auto& all = forward->function().getSchema().arguments();
    schema.assign(all.begin() + 1, all.end());
    inlined = forward->graph()->copy();
    torch::jit::Inline(*inlined);
    const torch::jit::Block* block = inlined->block();
    observe(block, module, effects);
    writes_inputs = effects.writes_inputs;
    needs_order = effects.writes_state;
    // After what the module declares has been read.
    has_limited_loops = limit_loops(module);
    if (device.is_cuda()) {
      // Runs use other streams than the copies of the weights.
      torch::cuda::synchronize(device.index());
    }
  }

  const std::vector<c10::Argument>& arguments() const override { return schema; }

  c10::IValue run(std::vector<c10::IValue> arguments) override { return (*forward)(std::move(arguments)); }

  at::ScalarType usual_dtype() {
    for (const auto& parameter : module.parameters()) {
      if (parameter.is_floating_point()) {
        return parameter.scalar_type();
      }
    }
    return at::kFloat;
  }

  std::string describe() override {
    std::string json = "{\"inputs\":[";
    for (size_t i = 0; i < schema.size(); ++i) {
      const c10::Argument& argument = schema[i];
      Guess known;
      if (i + 1 < inlined->inputs().size()) {
        known = guess(inlined->inputs()[i + 1], module);
      }
      json += i == 0 ? "{" : ",{";
      json += "\"name\":" + json_text(argument.name()) + ",\"type\":" + json_text(argument.type()->annotation_str());
      json += ",\"optional\":";
      json += argument.default_value() ? "true" : "false";
      json += ",\"dtype\":" + std::to_string(static_cast<int>(known.dtype.value_or(usual_dtype())));
      json += ",\"features\":" + std::to_string(known.features) + ",\"rank\":" + std::to_string(known.rank);
      json += ",\"channels\":" + std::to_string(known.channels) + "}";
    }
    json += "],\"writes_state\":";
    json += effects.writes_state ? "true" : "false";
    json += ",\"is_random\":";
    json += effects.is_random ? "true" : "false";
    return json + "}";
  }
};

// A package of AOTInductor: it takes and returns flat lists of tensors.
struct Package : ts_model {
  torch::inductor::AOTIModelPackageLoader loader;
  std::vector<c10::Argument> schema;

  Package(const char* path, const char* name, size_t runners, c10::Device on)
      : loader(path, name, false, runners, on.is_cuda() ? on.index() : -1) {
    auto metadata = loader.get_metadata();
    auto key = metadata.find("AOTI_DEVICE_KEY");
    device = key != metadata.end() && key->second == "cuda" ? on : c10::Device(c10::kCPU);
  }

  const std::vector<c10::Argument>& arguments() const override { return schema; }

  c10::IValue run(std::vector<c10::IValue> arguments) override {
    std::vector<at::Tensor> inputs;
    inputs.reserve(arguments.size());
    for (auto& argument : arguments) {
      inputs.push_back(std::move(argument).toTensor());
    }
    return c10::IValue(c10::List<at::Tensor>(loader.boxed_run(std::move(inputs))));
  }

  std::string describe() override {
    auto spec = loader.get_call_spec();
    std::string json = "{\"inputs\":[],\"call_spec\":[";
    for (size_t i = 0; i < spec.size(); ++i) {
      json += (i == 0 ? "" : ",") + json_text(spec[i]);
    }
    return json + "]}";
  }
};

// The stream of this thread on a GPU, one of the pool's 32. Runs of several threads take place side by side in their
// streams; in the stream that all threads have by default, they would wait for each other.
c10::Stream stream_of_thread(c10::Device device) {
  thread_local std::optional<c10::Stream> own;
  if (!own || own->device() != device) {
    own = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  return *own;
}

// --- Inputs and outputs --------------------------------------------------------------------------

at::Tensor tensor_of(const ts_view& view, const ts_model& model) {
  at::Tensor tensor = at::from_blob(
      const_cast<void*>(view.data), at::IntArrayRef(view.dims, view.rank),
      at::TensorOptions().dtype(static_cast<at::ScalarType>(view.dtype)));
  if (!model.device.is_cpu()) {
    return tensor.to(model.device);
  }
  // The memory belongs to the caller, who may use it elsewhere at the same time.
  return model.writes_inputs ? tensor.clone() : tensor;
}

c10::IValue scalar_of(const at::Tensor& tensor, const c10::Type& type, const std::string& name) {
  if (tensor.numel() != 1) {
    throw Failure(kInvalid, "input \"" + name + "\" is one number, and has " +
        std::to_string(tensor.numel()) + " elements");
  }
  switch (type.kind()) {
    case c10::TypeKind::IntType: return tensor.item().toLong();
    case c10::TypeKind::FloatType: return tensor.item().toDouble();
    case c10::TypeKind::BoolType: return tensor.item().toBool();
    default: return tensor.item();
  }
}

const c10::Type& without_optional(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    return *optional->getElementType();
  }
  return *type;
}

// The arguments of `forward` for these inputs.
std::vector<c10::IValue> stack_of(const ts_model& model, const ts_input* inputs, size_t count) {
  const auto& schema = model.arguments();
  std::vector<c10::IValue> stack(schema.empty() ? count : schema.size());
  std::vector<bool> given(stack.size(), false);
  for (size_t i = 0; i < count; ++i) {
    const size_t place = inputs[i].argument;
    if (place >= stack.size()) {
      throw Failure(kInternal, "an input has no argument");
    }
    at::Tensor tensor = tensor_of(inputs[i].tensor, model);
    if (schema.empty()) {
      stack[place] = std::move(tensor);
      given[place] = true;
      continue;
    }
    const c10::Type& type = without_optional(schema[place].type());
    if (type.kind() == c10::TypeKind::DictType) {
      if (!given[place]) {
        stack[place] = c10::Dict<std::string, at::Tensor>();
      }
      const char* key = inputs[i].key == nullptr ? "" : inputs[i].key;
      stack[place].toGenericDict().insert(std::string(key), std::move(tensor));
    } else if (type.kind() == c10::TypeKind::TensorType) {
      stack[place] = std::move(tensor);
    } else {
      stack[place] = scalar_of(tensor, type, schema[place].name());
    }
    given[place] = true;
  }
  for (size_t i = 0; i < schema.size(); ++i) {
    if (!given[i] && schema[i].default_value()) {
      stack[i] = *schema[i].default_value();
    }
  }
  return stack;
}

// A tensor in the memory of the host that no one else writes to.
at::Tensor plain(at::Tensor tensor) {
  if (tensor.is_quantized()) {
    tensor = tensor.dequantize();
  }
  if (tensor.layout() != at::kStrided) {
    tensor = tensor.to_dense();
  }
  if (!tensor.device().is_cpu()) {
    tensor = tensor.to(at::kCPU);
  }
  tensor = tensor.resolve_conj().resolve_neg().contiguous();
  // Shared with an input, the module or another output.
  const bool is_shared = tensor.use_count() > 1 || tensor.storage().use_count() > 1;
  return is_shared ? tensor.clone() : tensor;
}

void flatten(c10::IValue value, const std::string& name, int depth, std::vector<NamedTensor>& out) {
  if (depth > 16) {
    throw Failure(kUnsupported, "the output is nested too deeply");
  }
  const std::string own = name.empty() ? "output" : name;
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    if (!tensor.defined()) {
      throw Failure(kUnsupported, "the output \"" + own + "\" is an undefined tensor");
    }
    out.push_back({own, std::move(tensor)});
  } else if (value.isTuple()) {
    auto tuple = std::move(value).toTuple();
    const auto type = tuple->type<c10::TupleType>();
    const auto& fields = type->schema();
    for (size_t i = 0; i < tuple->elements().size(); ++i) {
      std::string part = fields && i < fields->arguments().size() ? fields->arguments()[i].name() : "";
      if (part.empty()) {
        flatten(tuple->elements()[i], own + "_" + std::to_string(i), depth + 1, out);
      } else {
        flatten(tuple->elements()[i], name.empty() ? part : name + "." + part, depth + 1, out);
      }
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      const c10::IValue& key = entry.key();
      std::string part = key.isString() ? key.toStringRef()
          : key.isInt()                 ? std::to_string(key.toInt())
                                        : "";
      if (part.empty()) {
        throw Failure(kUnsupported, "the output \"" + own + "\" has keys that are neither texts nor integers");
      }
      flatten(entry.value(), name.empty() ? part : name + "." + part, depth + 1, out);
    }
  } else if (value.isList()) {
    size_t i = 0;
    for (const c10::IValue& element : value.toListRef()) {
      flatten(element, own + "_" + std::to_string(i++), depth + 1, out);
    }
  } else if (value.isScalar()) {
    out.push_back({own, at::scalar_tensor(value.toScalar(), value.isInt() ? at::kLong
        : value.isBool() ? at::kBool : at::kDouble)});
  } else if (!value.isNone()) {
    throw Failure(kUnsupported, "the output \"" + own + "\" is a " + value.tagKind() +
        ", and only tensors and numbers can be returned");
  }
}

}  // namespace

struct ts_outputs {
  std::vector<NamedTensor> all;
};

struct ts_tensor {
  at::Tensor tensor;
};

TS_EXPORT uint32_t ts_interface() { return kInterface; }

TS_EXPORT const char* ts_version() { return TORCH_VERSION; }

TS_EXPORT uint64_t ts_abi() { return TORCH_ABI_VERSION; }

TS_EXPORT int32_t ts_gpus() {
  int32_t count = 0;
  ts_error* error = guarded(kInternal, [&] {
    count = torch::cuda::is_available() ? static_cast<int32_t>(torch::cuda::device_count()) : 0;
  });
  if (error != nullptr) {
    std::free(error->text);
    std::free(error);
  }
  return count;
}

TS_EXPORT void ts_free_error(ts_error* error) {
  if (error != nullptr) {
    std::free(error->text);
    std::free(error);
  }
}

TS_EXPORT void ts_free_text(char* text) { std::free(text); }

// Loads the TorchScript module at `path` onto the GPU number `gpu`, or, if that is negative, for the CPU.
TS_EXPORT ts_error* ts_load_script(const char* path, int32_t gpu, ts_model** model) {
  return guarded(kData, [&] {
    auto device = gpu < 0 ? c10::Device(c10::kCPU)
        : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    *model = new Script(path, device);
  });
}

// Loads the model `name` of the package of AOTInductor at `path`, of which `runners` runs can take place at a time.
TS_EXPORT ts_error* ts_load_package(
    const char* path, const char* name, size_t runners, int32_t gpu, ts_model** model) {
  return guarded(kData, [&] {
    auto device = gpu < 0 ? c10::Device(c10::kCPU)
        : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    *model = new Package(path, name, runners, device);
  });
}

TS_EXPORT void ts_free_model(ts_model* model) {
  ts_free_error(guarded(kInternal, [&] { delete model; }));
}

// What the model declares, as JSON.
TS_EXPORT ts_error* ts_describe(ts_model* model, char** json) {
  return guarded(kInternal, [&] { *json = copied(model->describe()); });
}

// Runs the model, for at most so many microseconds if that is not negative and the model has loops.
TS_EXPORT ts_error* ts_run(
    ts_model* model, const ts_input* inputs, size_t count, int32_t threads, int64_t micros,
    ts_outputs** outputs) {
  std::shared_ptr<TimeLimit> limit;
  ts_error* error = guarded(kInvalid, [&] {
    limit_threads(threads);
    std::optional<c10::DebugInfoGuard> guard;
    if (micros >= 0 && model->has_limited_loops) {
      limit = std::make_shared<TimeLimit>(Clock::now() + std::chrono::microseconds(micros));
      guard.emplace(kTimeLimit, limit);
    }
    std::optional<c10::StreamGuard> stream;
    if (model->device.is_cuda() && !model->needs_order) {
      stream.emplace(stream_of_thread(model->device));
    }
    c10::InferenceMode inference;
    auto made = std::make_unique<ts_outputs>();
    {
      auto stack = stack_of(*model, inputs, count);
      // The inputs stay alive in `stack`, and so are counted where an output shares their memory.
      flatten(model->run(stack), "", 0, made->all);
      for (auto& output : made->all) {
        output.tensor = plain(std::move(output.tensor));
      }
    }
    *outputs = made.release();
  });
  if (error != nullptr && limit && limit->is_over) {
    ts_free_error(error);
    return failed(kDeadline, "the run was ended at its deadline");
  }
  return error;
}

TS_EXPORT size_t ts_output_count(const ts_outputs* outputs) { return outputs->all.size(); }

TS_EXPORT const char* ts_output_name(const ts_outputs* outputs, size_t index) {
  return index < outputs->all.size() ? outputs->all[index].name.c_str() : "";
}

// Takes one of the outputs, and describes it. Its dimensions live as long as it does.
TS_EXPORT ts_tensor* ts_take_output(ts_outputs* outputs, size_t index, ts_view* view) {
  if (index >= outputs->all.size() || !outputs->all[index].tensor.defined()) {
    return nullptr;
  }
  auto* taken = new (std::nothrow) ts_tensor{std::move(outputs->all[index].tensor)};
  if (taken == nullptr) {
    return nullptr;
  }
  const at::Tensor& tensor = taken->tensor;
  view->data = tensor.const_data_ptr();
  view->dims = tensor.sizes().data();
  view->rank = tensor.sizes().size();
  view->bytes = tensor.nbytes();
  view->dtype = static_cast<int32_t>(tensor.scalar_type());
  return taken;
}

TS_EXPORT void ts_free_outputs(ts_outputs* outputs) { delete outputs; }

TS_EXPORT void ts_free_tensor(ts_tensor* tensor) { delete tensor; }
