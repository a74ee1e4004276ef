#include "check.h"
#include <dlfcn.h>
#include <strings.h>
// The runtime, the driver and NVML name the same place on the bus, in every spelling.
int main() {
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    char id[64], want[64];
    CHECK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    snprintf(want, sizeof want, "%04X:%02X:%02X.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    if (strcasecmp(id, want)) { printf("%s, expected %s\n", id, want); mismatch(); }
    const char *forms[] = {"%04x:%02x:%02x.0", "%04X:%02X:%02X.0", "%08x:%02x:%02x.0", "%04x:%02x:%02x"};
    for (auto form : forms) {
        snprintf(want, sizeof want, form, p.pciDomainID, p.pciBusID, p.pciDeviceID);
        int device = -1;
        cudaError_t e = cudaDeviceGetByPCIBusId(&device, want);
        if (e != cudaSuccess || device != 0) { printf("%s: %s %d\n", want, cudaGetErrorName(e), device); mismatch(); }
    }
    snprintf(want, sizeof want, "%02x:%02x.0", p.pciBusID, p.pciDeviceID);
    int device = -1;
    CHECK(cudaDeviceGetByPCIBusId(&device, want));
    EXPECT_EQ(device, 0);
    EXPECT_ERROR(cudaDeviceGetByPCIBusId(&device, "0000:ee:1e.0"), cudaErrorInvalidDevice);
    cudaGetLastError();
    char small[5];
    EXPECT_ERROR(cudaDeviceGetPCIBusId(small, 0, 0), cudaErrorInvalidValue);
    cudaGetLastError();
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    EXPECT(nvml != nullptr);
    if (!nvml) return finish();
    struct Pci { char legacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char id[32]; } pci = {};
    typedef void *Handle;
    Handle h;
    auto init = (int (*)())dlsym(nvml, "nvmlInit_v2");
    auto by_index = (int (*)(unsigned, Handle *))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    auto by_pci = (int (*)(const char *, Handle *))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
    auto info = (int (*)(Handle, Pci *))dlsym(nvml, "nvmlDeviceGetPciInfo_v3");
    EXPECT_EQ(init(), 0);
    EXPECT_EQ(by_index(0, &h), 0);
    EXPECT_EQ(info(h, &pci), 0);
    EXPECT_EQ(pci.domain, (unsigned)p.pciDomainID);
    EXPECT_EQ(pci.bus, (unsigned)p.pciBusID);
    EXPECT_EQ(pci.device, (unsigned)p.pciDeviceID);
    snprintf(want, sizeof want, "%08X:%02X:%02X.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    if (strcmp(pci.id, want)) { printf("%s, expected %s\n", pci.id, want); mismatch(); }
    if (strcmp(pci.legacy, want + 4)) { printf("%s, expected %s\n", pci.legacy, want + 4); mismatch(); }
    for (const char *text : {(const char *)pci.id, (const char *)pci.legacy, (const char *)id}) {
        Handle same = nullptr;
        EXPECT_EQ(by_pci(text, &same), 0);
        EXPECT(same == h);
    }
    CHECK(cudaDeviceGetByPCIBusId(&device, pci.id));
    return finish();
}
