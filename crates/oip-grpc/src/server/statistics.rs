//! Encodes statistics for the statistics extension.

use std::collections::BTreeMap;

use oip_service::{Grant, InferenceService, extensions};
use oip_types::{ModelRef, ServiceError};

use crate::proto;

pub(crate) fn statistics(
    service: &dyn InferenceService,
    request: &proto::ModelStatisticsRequest,
    grant: Option<&Grant>,
) -> Result<proto::ModelStatisticsResponse, ServiceError> {
    let statistics = extensions::statistics(service)?;
    let is_of_all = request.name.is_empty() && request.version.is_empty();
    let model = match is_of_all {
        true => None,
        false => {
            grant.map_or(Ok(()), |grant| grant.check_model(&request.name))?;
            Some(ModelRef::new(&request.name, Some(&request.version))?)
        }
    };
    let mut models = statistics.model_statistics(model)?;
    if let Some(grant) = grant {
        models.retain(|model| grant.check_model(&model.name).is_ok());
    }
    Ok(proto::ModelStatisticsResponse {
        model_stats: models.into_iter().map(write_model).collect(),
    })
}

fn write_model(statistics: oip_types::ModelStatistics) -> proto::ModelStatistics {
    let requests = statistics.inference_stats;
    proto::ModelStatistics {
        name: statistics.name,
        version: statistics.version,
        last_inference: statistics.last_inference,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(proto::InferStatistics {
            success: duration(requests.success),
            fail: duration(requests.fail),
            queue: duration(requests.queue),
            compute_input: duration(requests.compute_input),
            compute_infer: duration(requests.compute_infer),
            compute_output: duration(requests.compute_output),
            cache_hit: duration(requests.cache_hit),
            cache_miss: duration(requests.cache_miss),
        }),
        batch_stats: statistics.batch_stats.into_iter().map(write_batch).collect(),
        memory_usage: statistics.memory_usage.into_iter().map(write_memory).collect(),
        // The field is for models with several responses per request; such responses are not counted
        // separately.
        response_stats: BTreeMap::new(),
    }
}

fn write_batch(batch: oip_types::BatchStatistics) -> proto::InferBatchStatistics {
    proto::InferBatchStatistics {
        batch_size: batch.batch_size,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    }
}

fn write_memory(memory: oip_types::MemoryUsage) -> proto::MemoryUsage {
    proto::MemoryUsage {
        r#type: memory.kind,
        id: memory.id,
        byte_size: memory.byte_size,
    }
}

/// Returns a value even for zero, because Triton's clients read its fields unconditionally.
fn duration(duration: oip_types::StatisticDuration) -> Option<proto::StatisticDuration> {
    Some(proto::StatisticDuration {
        count: duration.count,
        ns: duration.ns,
    })
}
