//! Metrics of GPUs, under Triton's names.

use oip_telemetry::{Families, Family, Number};

use crate::gpus::Card;

const UTILIZATION: Family = Family::gauge(
    "nv_gpu_utilization",
    "Fraction of time in which a GPU was busy, from 0 to 1, from NVML.",
);

const MEMORY_TOTAL: Family = Family::gauge(
    "nv_gpu_memory_total_bytes",
    "Memory of a GPU in bytes, from NVML.",
);

const MEMORY_USED: Family = Family::gauge(
    "nv_gpu_memory_used_bytes",
    "Memory of a GPU in bytes that all programs use together, from NVML.",
);

const POWER: Family = Family::gauge("nv_gpu_power_usage", "Power of a GPU in watts, from NVML.");

/// Writes the metrics of GPUs. Writes nothing if there are no GPUs.
pub(super) fn write(text: &mut Families<'_>, cards: &[Card]) {
    if cards.is_empty() {
        return;
    }
    let mut family = |family: &Family, value: fn(&Card) -> Option<Number>| {
        let mut samples = text.family(family);
        for card in cards {
            if let Some(value) = value(card) {
                samples.add(&[("gpu_uuid", &card.uuid)], value);
            }
        }
    };
    family(&UTILIZATION, |card| card.utilization.map(Number::Real));
    family(&MEMORY_TOTAL, |card| card.memory_total.map(Number::Integer));
    family(&MEMORY_USED, |card| card.memory_used.map(Number::Integer));
    family(&POWER, |card| card.power.map(Number::Real));
}
