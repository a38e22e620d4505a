/* A libnvidia-ml.so.1 of two GPUs, for NVIDIA's own Python binding: GPU 0 computes, GPU 1 is cut into two MIG
   instances. NVML_FAILS names a function that answers 15 (NVML_ERROR_GPU_IS_LOST). Structures as in nvml.h. */
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef struct { int index; int part; } *Device;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
static struct { int index, part; } devices[] = {{0, -1}, {1, -1}, {1, 0}, {1, 1}};

static Result answer(const char *function, Result good) {
    const char *fails = getenv("NVML_FAILS");
    return fails && !strcmp(fails, function) ? GPU_IS_LOST : good;
}

Result nvmlInitWithFlags(unsigned flags) { return answer("nvmlInit", SUCCESS); }
Result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(Result code) { return "an error"; }
Result nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return answer("nvmlDeviceGetCount", SUCCESS); }
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    *device = (Device)&devices[index];
    return SUCCESS;
}
Result nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    const char *whole = device->index ? "GPU-cut" : "GPU-whole";
    strncpy(uuid, device->part < 0 ? whole : device->part ? "MIG-second" : "MIG-first", length);
    return SUCCESS;
}
Result nvmlDeviceGetUtilizationRates(Device device, Utilisation *found) {
    found->gpu = 73;
    return answer("nvmlDeviceGetUtilizationRates", device->index ? NOT_SUPPORTED : SUCCESS);
}
Result nvmlDeviceGetMemoryInfo(Device device, Memory *found) {
    found->total = 80ULL << 30;
    found->used = 60ULL << 30;
    return SUCCESS;
}
Result nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) {
    *milliwatts = 700000;
    return SUCCESS;
}
Result nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    *milliwatts = 350000;
    return SUCCESS;
}
Result nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    return NOT_SUPPORTED;
}
Result nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *later) {
    *now = *later = device->index;
    return SUCCESS;
}
Result nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) { *count = 7; return SUCCESS; }
Result nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned part, Device *found) {
    *found = (Device)&devices[2 + part % 2];
    return part < 2 ? SUCCESS : NOT_FOUND;
}
Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *found) {
    unsigned pid = device->part < 0 ? 41 : 51 + device->part;
    int fits = *count >= 1;
    *count = 1;
    if (!fits) return INSUFFICIENT_SIZE;
    found[0].pid = pid;
    return SUCCESS;
}

/* GPM: each sample counts on; of two that follow one another the multiprocessors were busy for 41.5 %. */
typedef struct { int taken; } *Sample;
typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; Result result; double value; char *names[3]; } Metric;
typedef struct { unsigned version, count; Sample first, second; Metric metrics[1]; } Comparison;
Result nvmlGpmQueryDeviceSupport(Device device, Support *support) {
    support->supported = !device->index;
    return SUCCESS;
}
Result nvmlGpmSampleAlloc(Sample *sample) { *sample = calloc(1, sizeof **sample); return SUCCESS; }
Result nvmlGpmSampleFree(Sample sample) { free(sample); return SUCCESS; }
Result nvmlGpmSampleGet(Device device, Sample sample) {
    static int taken;
    sample->taken = ++taken;
    return answer("nvmlGpmSampleGet", SUCCESS);
}
Result nvmlGpmMetricsGet(Comparison *asked) {
    int follows = asked->version == 1 && asked->count == 1 && asked->metrics[0].id == 2;
    asked->metrics[0].value = follows && asked->second->taken == asked->first->taken + 1 ? 41.5 : -1;
    asked->metrics[0].result = SUCCESS;
    return SUCCESS;
}
