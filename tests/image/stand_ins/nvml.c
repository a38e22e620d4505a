/* What stands in for NVIDIA's driver and one A10G at rest, which no virtual machine has: the calls of NVML that
 * agent and gate make (docs.nvidia.com/deploy/nvml-api). Needs no other library. */

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

typedef unsigned long long u64;

static int gpu;

static int text(char *to, unsigned size, const char *from) {
    unsigned i = 0;
    for (; i + 1 < size && from[i]; i++) to[i] = from[i];
    to[i] = 0;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, "580.95.05"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) { (void)index; *to = &gpu; return SUCCESS; }
int nvmlDeviceGetName(void *of, char *to, unsigned size) { (void)of; return text(to, size, "NVIDIA A10G"); }
int nvmlDeviceGetUUID(void *of, char *to, unsigned size) {
    (void)of;
    return text(to, size, "GPU-00000000-0000-0000-0000-000000000000");
}
int nvmlDeviceGetUtilizationRates(void *of, unsigned *to) { (void)of; to[0] = to[1] = 0; return SUCCESS; }
/* total, free, used */
int nvmlDeviceGetMemoryInfo(void *of, u64 *to) {
    (void)of;
    to[0] = 24ULL << 30, to[1] = 23ULL << 30, to[2] = 1ULL << 30;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(void *of, unsigned *mw) { (void)of; *mw = 300000; return SUCCESS; }
int nvmlDeviceGetPowerUsage(void *of, unsigned *mw) { (void)of; *mw = 20000; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(void *of, u64 *mj) { (void)of, (void)mj; return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(void *of, unsigned *a, unsigned *b) { (void)of, (void)a, (void)b; return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned *count, void *to) {
    (void)of, (void)to;
    *count = 0;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *of, int kind, int counter, u64 *to) {
    (void)of, (void)kind, (void)counter;
    *to = 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(void *of, unsigned link, int *to) {
    (void)of, (void)link, (void)to;
    return NOT_SUPPORTED;
}
/* nvmlPciInfo_t: 16 bytes of an older name, five numbers, 32 bytes of the name */
int nvmlDeviceGetPciInfo_v3(void *of, char *to) {
    (void)of;
    text(to, 16, "0000:00:1E.0");
    for (unsigned i = 16; i < 36; i++) to[i] = 0;
    return text(to + 36, 32, "00000000:00:1E.0");
}
