// The product of two matrices with mica.hpp, and an exception that names both shapes.
#include <cstdint>
#include <iostream>
#include <mica.hpp>

int main() {
    mica::vgpu gpu(64 << 20);
    mica::tensor a = gpu.tensor({2, 3}, {1, 2, 3, 4, 5, 6});
    mica::tensor b = gpu.tensor({2, 3}, {1, 0, -1, 0, 1, -2});
    for (float value : mica::gemm(a, b.transpose()).read())
        std::cout << value << ' ';
    std::cout << '\n';
    try {
        mica::gemm(a, b);
    } catch (const mica::error &refused) {
        std::cout << refused.what() << '\n';
    }
    mica::buffer buffer = gpu.buffer(16);
    buffer.write(std::vector<std::uint32_t>{1, 2, 3, 4});
    std::cout << buffer.read<std::uint32_t>(4)[3] << '\n';
    try {
        gpu.load("no PTX");
    } catch (const mica::error &refused) {
        std::cout << mica_status_name(refused.status()) << '\n';
    }
}
