"""The counters that NVIDIA's exporter publishes unless it is told otherwise.

github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv, rows that are not commented out, read 2026-11-21.
"""

_NAMES = """
    CORRECTABLE_REMAPPED_ROWS DEC_UTIL ENC_UTIL FB_FREE FB_USED GPU_TEMP GPU_UTIL MEMORY_TEMP
    MEM_CLOCK MEM_COPY_UTIL NVLINK_BANDWIDTH_TOTAL PCIE_REPLAY_COUNTER POWER_USAGE ROW_REMAP_FAILURE
    SM_CLOCK TOTAL_ENERGY_CONSUMPTION UNCORRECTABLE_REMAPPED_ROWS VGPU_LICENSE_STATUS XID_ERRORS
"""
DEFAULT_COUNTERS = frozenset(f"DCGM_FI_DEV_{name}" for name in _NAMES.split())
