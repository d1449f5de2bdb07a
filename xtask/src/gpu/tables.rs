//! Prints the tables of latency (compared with the CPU), agreement, throughput and memory.

use std::time::Duration;

use anyhow::Result;

use super::{
    bench::{Bench, COLUMNS, best_column},
    client::metric,
    measure::{Request, difference, median, rate},
};

/// Returns the rows of the latency table.
fn rows() -> [(&'static str, &'static str, Vec<Request>); 5] {
    let lengths = (20..60).map(|length| Request::Texts(1, length)).collect();
    [
        ("ResNet-50, 1 image", "resnet50", vec![Request::Images(1)]),
        ("ResNet-50, 8 images", "resnet50", vec![Request::Images(8)]),
        ("BERT-base, 1x128", "bert", vec![Request::Texts(1, 128)]),
        ("BERT-base, 8x128", "bert", vec![Request::Texts(8, 128)]),
        ("BERT-base, new lengths 20 to 59", "bert", lengths),
    ]
}

/// Prints the latency table, and how closely the outputs of the columns agree.
pub(super) fn times(bench: &Bench, has_cuda: bool) -> Result<()> {
    println!(
        "\n| p50 of one caller, ms | {} |",
        COLUMNS.map(|(_, title, _)| title).join(" | ")
    );
    println!("|---|---|---|---|---|");
    let mut told = Report::default();
    for model in ["resnet50", "bert"] {
        of_model(bench, model, has_cuda, &mut told)?;
    }
    println!("\n| agreement | largest difference, as a fraction of the largest number |\n|---|---|");
    told.agreement.iter().for_each(|line| println!("{line}"));
    told.notes.iter().for_each(|note| println!("note: {note}"));
    Ok(())
}

/// Lines that are printed after the latency table.
#[derive(Default)]
struct Report {
    agreement: Vec<String>,
    notes: Vec<String>,
}

/// Prints the rows of one model. The model of the first column stays loaded, since the outputs of the other
/// columns are compared with its outputs.
fn of_model(bench: &Bench, model: &str, has_cuda: bool, told: &mut Report) -> Result<()> {
    let mut cells: Vec<Vec<String>> = vec![Vec::new(); rows().len()];
    let reference = format!("{model}_{}", best_column(has_cuda));
    let mut is_there = false;
    for (column, title, _) in COLUMNS {
        let name = format!("{model}_{column}");
        if column == "cuda" && !has_cuda {
            cells.iter_mut().for_each(|row| row.push("missing".to_owned()));
            continue;
        }
        if let Err(reason) = bench.server.load(&name)? {
            told.notes.push(format!("{name} is not loaded: {reason}"));
            cells.iter_mut().for_each(|row| row.push("refused".to_owned()));
            continue;
        }
        for (row, (_, of, requests)) in cells.iter_mut().zip(rows()) {
            if of == model {
                row.push(cell(bench, &name, &requests, &mut told.notes));
            }
        }
        if is_there && !bench.is_over(Duration::from_secs(20)) {
            let request = match model {
                "bert" => Request::Texts(1, 128),
                _ => Request::Images(1),
            };
            told.agreement
                .push(match difference(&bench.server, [&reference, &name], request) {
                    Ok(difference) => format!("| {reference} and {title} | {difference:.1e} |"),
                    Err(error) => format!("| {reference} and {title} | {error:#} |"),
                });
        }
        match name == reference {
            true => is_there = true,
            false => bench.server.unload(&name)?,
        }
    }
    for (row, (title, of, _)) in cells.iter().zip(rows()) {
        if of == model {
            println!("| {title} | {} |", row.join(" | "));
        }
    }
    if is_there {
        bench.server.unload(&reference)?;
    }
    Ok(())
}

/// Returns the text of one cell: the median latency, or the reason why it could not be measured.
fn cell(bench: &Bench, model: &str, requests: &[Request], notes: &mut Vec<String>) -> String {
    if bench.is_over(Duration::from_secs(20)) {
        return "no time".to_owned();
    }
    match median(&bench.server, model, requests, Duration::from_secs(8)) {
        Ok(time) => format!("{time:.1}"),
        Err(error) => {
            notes.push(format!("{model}: {error:#}"));
            "failed".to_owned()
        }
    }
}

/// Prints the throughput with dynamic batching.
pub(super) fn rates(bench: &Bench, has_cuda: bool) -> Result<()> {
    println!(
        "\n| rows/s of single rows, dynamic batching | 1 caller | 8 callers | 32 callers |\n|---|---|---|---|"
    );
    let on_cpu = if has_cuda { "ort1" } else { "ort" };
    for (model, column, request) in [
        ("resnet50", "cuda", Request::Images(1)),
        ("resnet50", on_cpu, Request::Images(1)),
        ("bert", "cuda", Request::Texts(1, 128)),
        ("bert", on_cpu, Request::Texts(1, 128)),
    ] {
        let name = format!("{model}_{column}");
        if column == "cuda" && !has_cuda {
            println!("| {name} | missing | missing | missing |");
            continue;
        }
        if bench.is_over(Duration::from_secs(30)) {
            println!("| {name} | no time | no time | no time |");
            continue;
        }
        if let Err(reason) = bench.server.load(&name)? {
            println!("| {name} | refused: {reason} | | |");
            continue;
        }
        let mut cells = Vec::new();
        for callers in [1, 8, 32] {
            let (rows, failed) = rate(&bench.server, &name, request, callers, Duration::from_secs(4))?;
            cells.push(match failed {
                0 => format!("{rows:.0}"),
                failed => format!("{rows:.0}, {failed} failed"),
            });
        }
        println!("| {name} | {} |", cells.join(" | "));
        bench.server.unload(&name)?;
    }
    Ok(())
}

/// Loads and unloads a model ten times, and checks that its memory is freed.
pub(super) fn loads(bench: &Bench, has_cuda: bool) -> Result<()> {
    let column = best_column(has_cuda);
    let metric_of = |name: &str| -> Result<Option<f64>> { Ok(metric(&bench.server.metrics()?, name)) };
    let gpu = || metric_of("nv_gpu_memory_used_bytes");
    let own = || metric_of("process_resident_memory_bytes");
    let show =
        |bytes: Option<f64>| bytes.map_or("not shown".to_owned(), |bytes| format!("{:.0} MB", bytes / 1e6));
    println!(
        "\n| load and unload resnet50_{column} ten times | GPU memory | the server's memory |\n|---|---|---|"
    );
    println!("| before | {} | {} |", show(gpu()?), show(own()?));
    let name = format!("resnet50_{column}");
    for round in 1..=10 {
        if bench.is_over(Duration::from_secs(15)) {
            println!("| no time after {} rounds | | |", round - 1);
            return Ok(());
        }
        if let Err(reason) = bench.server.load(&name)? {
            println!("| round {round} | {reason} | |");
            return Ok(());
        }
        bench
            .server
            .client()?
            .infer(&name, &Request::Images(8).inputs())?
            .numbers()?;
        if round == 1 {
            println!("| loaded | {} | {} |", show(gpu()?), show(own()?));
        }
        bench.server.unload(&name)?;
        if round == 1 || round == 10 {
            println!("| after {round} | {} | {} |", show(gpu()?), show(own()?));
        }
    }
    Ok(())
}
