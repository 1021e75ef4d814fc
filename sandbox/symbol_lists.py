"""Names that a compiled candidate may take from the libraries around it, and names that it may not, with the reason."""

from __future__ import annotations

import re


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


ALLOWED_ATEN = _words(
    # allocation, and setting what was allocated to one number
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_zeros zeros zeros_like zero_ "
    "full full_like new_full ones ones_like new_ones fill_ resize_ scalar_tensor",
    # views
    "view view_as view_as_real view_as_complex _unsafe_view reshape reshape_as _reshape_alias _reshape_copy flatten "
    "unflatten expand expand_as permute transpose transpose_ t t_ swapaxes swapdims movedim moveaxis mT mH adjoint "
    "numpy_T squeeze squeeze_ unsqueeze unsqueeze_ slice select narrow as_strided split split_with_sizes chunk "
    "tensor_split unbind diagonal unfold detach detach_ alias lift_fresh real imag",
    # copies and conversions
    "copy_ clone contiguous to _to_copy type_as cpu",
    # metadata
    "size stride sym_size sym_stride sym_numel sym_storage_offset is_contiguous numel dim storage_offset "
    "is_same_size is_complex is_floating_point is_nonzero item _local_scalar_dense result_type "
    "_has_compatible_shallow_copy_type is_pinned requires_grad_",
)
"""Base names of the aten operators that a candidate may use, in C++ and in ModelNew.forward."""

ATEN_OVERLOADS = _words(
    "memory_format names names_out out int Tensor Scalar dtype dtype_layout device other DimnameList Dimname size "
    "sizes ScalarType IntList int_out dim dims sections indices tensor_indices_or_sections self_int Stream "
    "using_ints named_out Tensor_out Dimname_out source_Storage source_Storage_storage_offset source_Tensor "
    "source_Tensor_storage_offset prim_Device prim_dtype prim_other no_dim intlist Tensor_with_copy"
)
"""What may follow a base name in the name of an aten operator's structure."""

TORCH_NAMESPACES = {"at", "c10", "torch", "caffe2"}
ALLOWED_PATHS = [
    # (prefix of the qualified name) of what is no operator: the tensor class, its storage, errors, threads, binding
    "at::Tensor",
    "at::TensorBase",
    "at::TensorGeometry",
    "at::TensorMaker",
    "at::detail::empty_",
    "at::internal::",
    "at::get_num_threads",
    "at::get_thread_num",
    "at::in_parallel_region",
    "at::init_num_threads",
    "at::impl::",
    "at::globalContext",
    "at::Context::",
    "at::indexing::",
    "at::print",
    "at::toString",
    "at::ThreadLocalState",
    "at::namedinference::",
    "at::NamesMode",
    "at::NoNamesGuard",
    "at::OptionalTensorRef",
    "c10::",
    "caffe2::TypeMeta",
    "torch::autograd::AutogradMeta",
    "torch::autograd::Node",
    "torch::autograd::make_variable",
    "torch::autograd::impl::",
    "torch::autograd::VariableHooks",
    "torch::python_error",
    "torch::PyWarningHandler",
    "torch::TypeError",
    "torch::ValueError",
    "torch::IndexError",
    "torch::PyTorchError",
    "torch::processErrorMsg",
    "torch::getTHP",
    "torch::get_symint_class",
    "torch::get_symfloat_class",
    "torch::get_symbool_class",
    "torch::is_symint",
    "torch::is_symfloat",
    "torch::is_symbool",
    "at::cuda::getCurrentCUDABlasHandle",
    "at::cuda::getCurrentDeviceProperties",
    "at::cuda::getDeviceProperties",
    "at::cuda::warp_size",
]
REFUSED_PATHS = [
    # Reaching or rewriting operators behind the scan's back, and the record of operators the judge keeps.
    "c10::Dispatcher",
    "c10::OperatorHandle",
    "c10::KernelFunction",
    "c10::RegisterOperators",
    "c10::BoxedKernel",
    "c10::impl::OperatorEntry",
    "c10::impl::TorchDispatchModeTLS",
    "c10::impl::PythonDispatcherTLS",
    "c10::impl::_force_tls_local_dispatch_key_set",
    "c10::impl::tls_set_dispatch_key",
    "c10::SafePyObject",
    "at::impl::tls_set",
    "c10::impl::set_",
    "at::Context::set",
    "at::internal::set_num_threads",
    # Other streams than the current one, and memory that the allocator holds.
    "c10::cuda::CUDACachingAllocator",
    "c10::cuda::getStreamFrom",
    "c10::cuda::set",
    "c10::cuda::getDefaultCUDAStream",
]
REFUSED_PYTHON = re.compile(
    r"_?Py(Run|Import|Marshal|AST|Code|Sys|OS|Unstable|GC|Interpreter_|Audit|RefTracer|Initialize|Finalize|Init_)(_|[A-Z])"
    r"|_?PyEval_(Eval|GetFrame|GetLocals|GetGlobals|SetProfile|SetTrace)|_?Py_(Compile|Exit|Main|Finalize|Initialize"
    r"|AtExit|RunMain|BytesMain|NewInterpreter|EndInterpreter|AddPendingCall)|_?PyFrame_(GetLocals|GetGlobals|GetBuiltins"
    r"|LocalsToFast)|_?PyMemoryView_|_?PyThreadState_SetAsyncExc"
)
REFUSED_LIBC = {
    name: reason
    for reason, names in {
        "loads libraries or looks symbols up": "dlopen dlsym dlvsym dlmopen dladdr dladdr1 dlinfo dl_iterate_phdr "
        "__libc_dlopen_mode __libc_dlsym _dl_sym _r_debug _r_debug_extended _dl_find_object _rtld_global "
        "_rtld_global_ro",
        "starts processes": "system popen fork vfork _Fork clone clone3 posix_spawn posix_spawnp execve execv execvp "
        "execvpe execl execlp execle execveat fexecve daemon wordexp",
        "ends the process": "exit _exit _Exit quick_exit on_exit kill killpg raise tgkill pthread_kill",
        "reaches other processes": "ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd waitpid wait4",
        "opens files or writes to descriptors": "open open64 openat openat64 creat creat64 fopen fopen64 freopen "
        "freopen64 fdopen opendir fdopendir read write pread pread64 pwrite pwrite64 readv writev preadv pwritev "
        "sendfile sendfile64 splice tee vmsplice dup dup2 dup3 fcntl fcntl64 ioctl pipe pipe2 memfd_create shm_open "
        "shm_unlink shmget shmat mq_open unlink unlinkat rename renameat remove truncate truncate64 ftruncate "
        "ftruncate64 link symlink readlink chmod chown mkdir rmdir mkstemp mkstemp64 tmpfile tmpfile64 scandir ftw "
        "nftw glob realpath stat lstat fstat fstatat",
        "uses the network": "socket socketpair connect bind listen accept accept4 send sendto sendmsg sendmmsg recv "
        "recvfrom recvmsg getaddrinfo gethostbyname",
        "changes memory protection": "mmap mmap64 mremap munmap mprotect pkey_mprotect pkey_alloc remap_file_pages "
        "userfaultfd",
        "installs handlers or timers": "signal sigaction bsd_signal sysv_signal sigaltstack setitimer timer_create "
        "timer_settime alarm ualarm eventfd signalfd timerfd_create",
        "makes raw system calls": "syscall",
        "changes scheduling, limits or privileges": "sched_setaffinity sched_setscheduler sched_setparam setpriority "
        "nice pthread_setaffinity_np pthread_setschedparam setrlimit setrlimit64 prlimit prlimit64 prctl arch_prctl "
        "personality setuid setgid setreuid setresuid unshare setns chroot mount umount ptsname clock_settime "
        "settimeofday adjtime adjtimex",
        "changes the environment": "setenv putenv unsetenv clearenv environ __environ _environ",
        "replaces the allocator": "mallopt __malloc_hook __free_hook __realloc_hook malloc_trim",
    }.items()
    for name in names.split()
}
REFUSED_CXX = re.compile(r"St(13basic_fstream|14basic_[io]fstream|13basic_filebuf)|St10filesystem")
RUNTIMES = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|libgomp|ld-linux[-\w]*|libpthread|libmvec|librt)\.so(\.\d+)?$")
TORCH_PYTHON = re.compile(r"(_Z\d+)?THP(Dtype|Device|Layout|MemoryFormat|Variable|Size)")
"""What torch's type casters for tensors, dtypes and devices take from libtorch_python."""
CUDA_LIBRARIES = re.compile(r"lib(cudart|cublas|cublasLt|cudnn\w*)\.so(\.\d+)?$")
CUDART = re.compile(
    r"__cuda\w+"  # what nvcc puts in: registration of kernels, launches
    r"|cudaLaunch(Kernel|KernelExC|CooperativeKernel)|cuda(Get|Peek)\w*LastError|cudaPeekAtLastError"
    r"|cudaGetError(Name|String)|cudaFunc(SetAttribute|GetAttributes|SetCacheConfig)|cudaOccupancy\w+"
    r"|cuda(Get|Set)DoubleFor\w+|cudaGetDevice|cudaGetDeviceCount|cudaGetDeviceProperties(_v2)?|cudaDeviceGetAttribute"
    r"|cudaMem(cpy|set)(2D|3D)?(Async)?|cudaMemcpy(To|From)Symbol(Async)?|cudaGetSymbol(Address|Size)"
    r"|cuda(Malloc|Free)(Async)?|cudaMalloc(Pitch|3D)|cuda(Device|Stream)Synchronize"
)
"""Of the runtime library: launching, attributes, copies, scratch memory. Not: streams, events, graphs, host callbacks,
limits and access policies, other processes' memory, managed memory, modules and driver entry points."""
CUBLAS = re.compile(
    r"cublas(Create|Destroy|Set(Stream|Workspace|MathMode|PointerMode)|Get(Stream|MathMode|PointerMode|Version|Property"
    r"|StatusString|StatusName))(_v2)?|cublas\w*[gG][eE][mM][mMvV]\w*|cublasLt(Create|Destroy|Matmul\w*|Matrix\w*|Get\w+)"
)
CUDNN = re.compile(
    r"cudnn(Create|Destroy|SetStream|GetVersion|GetErrorString|GetLastErrorString"
    r"|(Create|Destroy|Set|Get)(Tensor|Filter|Convolution|Activation)\w*|(Find|Get)Convolution\w*|Convolution\w+"
    r"|AddTensor|TransformTensor|TransformFilter)"
)
HOST_THREADS = re.compile(r"pthread_create$|_ZNSt6thread|_ZNSt\d+__async|GOMP_")
LINKER = {"__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize"}
