//! The Rust client of the buffer, as a process: one JSON request per line on stdin, one JSON answer per line on stdout.
//!
//! `interop <store> <prefix>`: the store is the crate's own configuration as JSON; everything is below `prefix` in it.
//! An S3 store takes the rest (endpoint, keys) from the environment, which is how the crate does it.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use buffer::{
    BatchDescriptor, CompressionType, ConsumedBatch, Consumer, ConsumerConfig, Error, Metadata,
    Producer, ProducerConfig, Result,
};
use bytes::Bytes;
use common::ObjectStoreConfig;
use common::clock::SystemClock;
use common::storage::factory::create_object_store;
use serde::Deserialize;
use serde_json::{Value, json};
use slatedb::object_store::ObjectStore;
use slatedb::object_store::prefix::PrefixStore;

const LONG: Duration = Duration::from_secs(24 * 3600);

#[derive(Deserialize)]
struct Call {
    entries: Vec<String>,
    metadata: String,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    /// Each list of calls becomes one batch.
    Produce {
        compression: CompressionType,
        batches: Vec<Vec<Call>>,
    },
    /// Take the epoch.
    Open {
        last_acked: Option<u64>,
    },
    NextBatch,
    NextDescriptors {
        max: usize,
    },
    Ack {
        sequence: u64,
    },
    AckThrough {
        sequence: u64,
    },
    Flush,
    Close,
    /// What the crate reads in the bytes of a manifest.
    Parse {
        manifest: String,
    },
}

struct Session {
    config: ObjectStoreConfig,
    store: Arc<dyn ObjectStore>,
    consumer: Option<Consumer>,
}

impl Session {
    async fn answer(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::Produce {
                compression,
                batches,
            } => self.produce(compression, batches).await,
            Request::Open { last_acked } => {
                let config = ConsumerConfig {
                    object_store: self.config.clone(),
                    manifest_path: "ingest/manifest".into(),
                    data_path_prefix: "ingest".into(),
                    gc_interval: LONG,
                    gc_grace_period: LONG,
                };
                self.consumer = Some(
                    Consumer::with_object_store(config, self.store.clone(), last_acked).await?,
                );
                Ok(Value::Null)
            }
            Request::NextBatch => Ok(self
                .consumer()?
                .next_batch()
                .await?
                .map_or(Value::Null, batch)),
            Request::NextDescriptors { max } => Ok(self
                .consumer()?
                .next_descriptors(max)
                .await?
                .into_iter()
                .map(descriptor)
                .collect()),
            Request::Ack { sequence } => self.consumer()?.ack(sequence).await.map(Value::from),
            Request::AckThrough { sequence } => self
                .consumer()?
                .ack_through(sequence)
                .await
                .map(Value::from),
            Request::Flush => self.consumer()?.flush().await.map(Value::from),
            Request::Close => {
                self.consumer()?;
                self.consumer
                    .take()
                    .expect("it is open")
                    .close()
                    .await
                    .map(Value::from)
            }
            Request::Parse { manifest } => parse(&manifest),
        }
    }

    async fn produce(
        &self,
        compression: CompressionType,
        batches: Vec<Vec<Call>>,
    ) -> Result<Value> {
        let config = ProducerConfig {
            object_store: self.config.clone(),
            data_path_prefix: "ingest".into(),
            manifest_path: "ingest/manifest".into(),
            flush_interval: LONG,
            flush_size_bytes: usize::MAX,
            max_buffered_inputs: 1000,
            batch_compression: compression,
        };
        let producer =
            Producer::with_object_store(config, self.store.clone(), Arc::new(SystemClock))?;
        let mut times = Vec::new();
        for calls in batches {
            let mut handles = Vec::new();
            for call in calls {
                let entries = call
                    .entries
                    .iter()
                    .map(|entry| decode(entry))
                    .collect::<Result<_>>()?;
                handles.push(producer.produce(entries, decode(&call.metadata)?).await?);
            }
            producer.flush().await?;
            for handle in &mut handles {
                handle.watcher.await_durable().await?;
            }
            times.push(
                handles
                    .iter()
                    .map(|handle| handle.ingestion_time_ms)
                    .collect::<Vec<_>>(),
            );
        }
        producer.close().await?;
        Ok(json!(times))
    }

    fn consumer(&mut self) -> Result<&mut Consumer> {
        self.consumer
            .as_mut()
            .ok_or_else(|| Error::InvalidInput("no consumer is open".into()))
    }
}

fn decode(text: &str) -> Result<Bytes> {
    STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(|error| Error::InvalidInput(error.to_string()))
}

fn items(metadata: &[Metadata]) -> Value {
    metadata
        .iter()
        .map(|item| {
            json!([
                item.start_index,
                item.ingestion_time_ms,
                STANDARD.encode(&item.payload)
            ])
        })
        .collect()
}

fn descriptor(found: BatchDescriptor) -> Value {
    json!({"sequence": found.sequence, "location": found.location, "metadata": items(&found.metadata)})
}

fn batch(found: ConsumedBatch) -> Value {
    json!({
        "sequence": found.sequence,
        "location": found.location,
        "metadata": items(&found.metadata),
        "entries": found.entries.iter().map(|entry| STANDARD.encode(entry)).collect::<Vec<_>>(),
    })
}

fn parse(manifest: &str) -> Result<Value> {
    let view = buffer::parse_manifest(decode(manifest)?)?;
    let entries: Vec<Value> = view
        .entries()
        .iter()
        .map(|entry| json!({"sequence": entry.sequence, "location": entry.location, "metadata": items(&entry.metadata)}))
        .collect();
    Ok(json!({"epoch": view.epoch, "next_sequence": view.next_sequence, "entries": entries}))
}

fn refusal(error: &Error) -> Value {
    let kind = match error {
        Error::Storage(_) => "storage",
        Error::Serialization(_) => "serialization",
        Error::InvalidInput(_) => "invalid_input",
        Error::Fenced => "fenced",
    };
    json!({"error": kind, "message": error.to_string()})
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let config: ObjectStoreConfig = serde_json::from_str(&arguments[1])?;
    let store = Arc::new(PrefixStore::new(
        create_object_store(&config)?,
        arguments[2].as_str(),
    ));
    let mut session = Session {
        config,
        store,
        consumer: None,
    };
    for line in std::io::stdin().lock().lines() {
        let answer = match session.answer(serde_json::from_str(&line?)?).await {
            Ok(value) => json!({"ok": value}),
            Err(error) => refusal(&error),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
