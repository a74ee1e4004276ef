// Virtual GPUs and the compute library of Mica for C++17: handles that free themselves, and failures as exceptions.
//
// Everything is inline over mica.h; link with -lmica. Objects can be moved and not copied.
#ifndef MICA_HPP
#define MICA_HPP

#include <mica.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace mica {

// A call that failed: its status, and the library's sentence about it.
class error : public std::runtime_error {
public:
    explicit error(mica_status status)
        : std::runtime_error(std::string(mica_status_name(status)) + ": " + mica_last_error()), status_(status) {}
    mica_status status() const noexcept { return status_; }

private:
    mica_status status_;
};

inline void check(mica_status status) {
    if (status != MICA_OK)
        throw error(status);
}

namespace detail {
// A failure to free cannot be reported by a destructor; the library refuses it without harm.
template <typename T, mica_status (*Free)(T *)> struct deleter {
    void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, mica_status (*Free)(T *)> using handle = std::unique_ptr<T, deleter<T, Free>>;
} // namespace detail

class stream {
public:
    mica_stream *get() const noexcept { return handle_.get(); }
    void synchronize() const { check(mica_stream_synchronize(get())); }

private:
    friend class vgpu;
    explicit stream(mica_stream *handle) : handle_(handle) {}
    detail::handle<mica_stream, mica_stream_free> handle_;
};

class buffer {
public:
    mica_buffer *get() const noexcept { return handle_.get(); }
    std::uint64_t address() const {
        std::uint64_t address = 0;
        check(mica_buffer_address(get(), &address));
        return address;
    }
    template <typename T> void write(const std::vector<T> &values, const stream *in = nullptr) {
        check(mica_buffer_write(get(), 0, values.data(), values.size() * sizeof(T), in ? in->get() : nullptr));
    }
    template <typename T> std::vector<T> read(std::size_t count, const stream *in = nullptr) const {
        std::vector<T> values(count);
        check(mica_buffer_read(get(), 0, values.data(), count * sizeof(T), in ? in->get() : nullptr));
        return values;
    }

private:
    friend class vgpu;
    explicit buffer(mica_buffer *handle) : handle_(handle) {}
    detail::handle<mica_buffer, mica_buffer_free> handle_;
};

class kernel {
public:
    // Parameters are passed as they are in memory: numbers, plain structs, addresses as std::uint64_t.
    template <typename... Params>
    void launch(mica_grid grid, const stream *in, const Params &...params) const {
        const mica_param all[] = {mica_param{&params, sizeof params}..., mica_param{nullptr, 0}};
        check(mica_launch(handle_.get(), &grid, all, sizeof...(params), in ? in->get() : nullptr));
    }

private:
    friend class module;
    explicit kernel(mica_kernel *handle) : handle_(handle) {}
    detail::handle<mica_kernel, mica_kernel_free> handle_;
};

class module {
public:
    mica::kernel kernel(const std::string &name) const {
        mica_kernel *handle = nullptr;
        check(mica_module_kernel(handle_.get(), name.c_str(), &handle));
        return mica::kernel(handle);
    }

private:
    friend class vgpu;
    explicit module(mica_module *handle) : handle_(handle) {}
    detail::handle<mica_module, mica_module_free> handle_;
};

class tensor {
public:
    mica_tensor *get() const noexcept { return handle_.get(); }
    std::vector<std::size_t> shape() const {
        std::size_t all[MICA_MOST_AXES], axes = 0;
        check(mica_tensor_shape(get(), &all, &axes));
        return std::vector<std::size_t>(all, all + axes);
    }
    tensor transpose() const {
        mica_tensor *view = nullptr;
        check(mica_tensor_transpose(get(), &view));
        return tensor(view);
    }
    std::vector<float> read() const {
        std::size_t count = 1;
        for (std::size_t extent : shape())
            count *= extent;
        std::vector<float> values(count);
        check(mica_tensor_read(get(), values.data(), count * sizeof(float)));
        return values;
    }

private:
    friend class vgpu;
    friend tensor gemm(const tensor &, const tensor &, const tensor *, mica_activation, float);
    friend tensor softmax(const tensor &, float);
    explicit tensor(mica_tensor *handle) : handle_(handle) {}
    detail::handle<mica_tensor, mica_tensor_free> handle_;
};

inline tensor gemm(const tensor &a, const tensor &b, const tensor *bias = nullptr,
                   mica_activation activation = MICA_NONE, float alpha = 1) {
    mica_tensor *result = nullptr;
    check(mica_gemm(a.get(), b.get(), alpha, bias ? bias->get() : nullptr, activation, &result));
    return tensor(result);
}

inline tensor softmax(const tensor &x, float scale = 1) {
    mica_tensor *result = nullptr;
    check(mica_softmax(x.get(), scale, &result));
    return tensor(result);
}

class vgpu {
public:
    // A virtual GPU in this process, on the software GPU.
    explicit vgpu(std::uint64_t memory_bytes = 0, double share_percent = 0) {
        mica_vgpu_options options = {};
        options.struct_size = sizeof options;
        options.memory_bytes = memory_bytes;
        options.share_percent = share_percent;
        mica_vgpu *handle = nullptr;
        check(mica_vgpu_create(&options, &handle));
        handle_.reset(handle);
    }
    mica_vgpu *get() const noexcept { return handle_.get(); }
    mica_memory memory() const {
        mica_memory now;
        check(mica_vgpu_memory(get(), &now));
        return now;
    }
    mica::stream stream() const {
        mica_stream *handle = nullptr;
        check(mica_stream_create(get(), &handle));
        return mica::stream(handle);
    }
    mica::buffer buffer(std::size_t bytes) const {
        mica_buffer *handle = nullptr;
        check(mica_buffer_alloc(get(), bytes, &handle));
        return mica::buffer(handle);
    }
    mica::module load(const std::string &ptx) const {
        mica_module *handle = nullptr;
        check(mica_module_load(get(), ptx.c_str(), &handle));
        return mica::module(handle);
    }
    mica::tensor tensor(const std::vector<std::size_t> &shape, const std::vector<float> &values) const {
        mica_tensor *handle = nullptr;
        check(mica_tensor_create(get(), MICA_F32, shape.data(), shape.size(), values.data(),
                                 values.size() * sizeof(float), &handle));
        return mica::tensor(handle);
    }

private:
    detail::handle<mica_vgpu, mica_vgpu_free> handle_;
};

} // namespace mica

#endif // MICA_HPP
