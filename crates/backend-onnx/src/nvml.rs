//! Detects the GPUs of this machine with NVIDIA's management library (NVML), and writes their metrics. Without
//! NVML, GPUs are unknown and the metrics show none.

use std::{env, sync::OnceLock};

use nvml_wrapper::{Device, Nvml};
use oip_telemetry::{Families, Family, Number};

use crate::{Gpu, GpuChoice, Gpus};

/// NVML, loaded on the first request for GPUs.
static NVML: OnceLock<Option<Nvml>> = OnceLock::new();

/// The metrics that Triton reports for a GPU.
struct Card {
    /// UUID with the prefix `GPU-`.
    uuid: String,
    /// Fraction of the time in which the GPU was busy, from 0 to 1.
    utilization: Option<f64>,
    memory_used: Option<u64>,
    memory_total: Option<u64>,
    /// Power draw in watts.
    power: Option<f64>,
}

/// Returns the GPUs that this process can use. `choice` applies to models that do not select any. The first
/// call loads NVML.
#[must_use]
pub fn gpus(choice: GpuChoice) -> Gpus {
    let gpus = Gpus::new(choice);
    let Some(nvml) = NVML.get_or_init(load) else {
        return gpus;
    };
    let names: Vec<String> = devices(nvml)
        .map(|device| device.name().unwrap_or_else(|_| "unnamed".to_owned()))
        .collect();
    let uuids: Vec<String> = devices(nvml)
        .map(|device| device.uuid().unwrap_or_default())
        .collect();
    let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
    let seen = visible_devices(visible.as_deref(), &uuids);
    gpus.with_seen(
        seen.into_iter()
            .filter_map(|index| names.get(index))
            .map(Gpu::new),
    )
}

/// Writes the metrics of GPUs, under Triton's names. Writes nothing before [`gpus`] was called, or without
/// NVML or GPUs.
pub fn write_metrics(families: &mut Families<'_>) {
    let cards = cards();
    if cards.is_empty() {
        return;
    }
    let mut family = |family: &Family, value: fn(&Card) -> Option<Number>| {
        let mut samples = families.family(family);
        for card in &cards {
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

/// Returns the current state of the GPUs; empty before [`gpus`] was called, or without NVML.
fn cards() -> Vec<Card> {
    let nvml = NVML.get().and_then(Option::as_ref);
    let cards = nvml.into_iter().flat_map(devices).filter_map(|device| {
        let memory = device.memory_info().ok();
        Some(Card {
            uuid: device.uuid().ok()?,
            utilization: device
                .utilization_rates()
                .ok()
                .map(|rates| f64::from(rates.gpu) / 100.0),
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.map(|memory| memory.total),
            power: device
                .power_usage()
                .ok()
                .map(|milliwatts| f64::from(milliwatts) / 1000.0),
        })
    });
    cards.collect()
}

fn load() -> Option<Nvml> {
    match Nvml::init() {
        Ok(nvml) => Some(nvml),
        Err(error) => {
            tracing::info!(%error, "no NVML: the GPUs are unknown, and metrics show none");
            None
        }
    }
}

fn devices(nvml: &Nvml) -> impl Iterator<Item = Device<'_>> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| nvml.device_by_index(index).ok())
}

/// Returns the devices visible to CUDA in this process, in CUDA's order: all devices, or those in
/// `CUDA_VISIBLE_DEVICES` up to the first invalid entry.
fn visible_devices(variable: Option<&str>, uuids: &[String]) -> Vec<usize> {
    let Some(variable) = variable else {
        return (0..uuids.len()).collect();
    };
    let place = |entry: &str| match entry.trim().parse::<usize>() {
        Ok(index) => (index < uuids.len()).then_some(index),
        // The entry is a UUID or the beginning of one.
        Err(_) => {
            let entry = entry.trim();
            let is_meant = |uuid: &String| entry.starts_with("GPU-") && uuid.starts_with(entry);
            uuids.iter().position(is_meant)
        }
    };
    let entries = variable.split(',').map(place);
    entries.map_while(|found| found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_cuda_hides_are_not_seen() {
        let uuids = ["GPU-aa11", "GPU-bb22", "GPU-cc33"].map(str::to_owned);
        for (variable, expected) in [
            (None, &[0, 1, 2][..]),
            (Some(""), &[]),
            (Some("2,0"), &[2, 0]),
            (Some("GPU-bb"), &[1]),
            (Some("1,-1,0"), &[1]),
            (Some("0,7,1"), &[0]),
            (Some("NoDevFiles"), &[]),
        ] {
            assert_eq!(visible_devices(variable, &uuids), expected, "{variable:?}");
        }
    }
}
