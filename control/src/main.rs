//! The control service of Kinference.

use clap::Parser;
use kinference_control::{app, cli};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = cli::Args::parse();
    cli::init_logging(args.log_format, &args.log)?;
    let stop = app::stop_signal()?;
    let mut service = app::Service::start(&args).await?;
    println!("listening grpc={} admin={}", service.grpc, service.admin);
    tokio::select! {
        () = stop => tracing::info!("stopping"),
        error = service.failed() => return Err(error),
    }
    service.stop().await;
    Ok(())
}
