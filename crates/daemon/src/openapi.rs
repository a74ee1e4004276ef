//! The OpenAPI document, made from the handlers and types.

use mica_control::api;
use utoipa::OpenApi;

use crate::http;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Mica control API",
        description = "HTTP on the unix socket control.sock"
    ),
    paths(
        http::vgpus::create,
        http::vgpus::list,
        http::vgpus::show,
        http::vgpus::history,
        http::vgpus::join,
        http::vgpus::resize,
        http::vgpus::remove,
        http::vgpus::suspend,
        http::vgpus::resume,
        http::programs::cancel,
        http::programs::report,
        http::containers::create,
        http::containers::list,
        http::containers::remove,
        http::history::history,
        http::history::usage,
        http::gpus,
        http::live::turns,
        http::live::live,
        crate::web::sign_in::dashboard,
        crate::web::sign_in::who,
        crate::web::sign_in::sign_in,
        crate::web::sign_in::sign_out,
        http::stats,
        http::doctor,
        http::shutdown,
        http::reload,
        http::events::events,
        http::metrics,
    ),
    components(schemas(
        api::VgpuSpec,
        api::Resize,
        api::VgpuInfo,
        api::ConfinementInfo,
        api::ContainerInfo,
        api::ContainerSocket,
        api::ContainerSocketSpec,
        api::MissingLayer,
        api::ProcessInfo,
        api::ResidencyInfo,
        api::GpuInfo,
        api::Created,
        api::ApiError,
        api::Event,
        api::Sample,
        api::History,
        api::Timelines,
        api::Timeline,
        api::Subject,
        api::Point,
        api::UsageReport,
        api::UsageAccount,
        api::AccountBy,
        api::Stats,
        api::DaemonInfo,
        api::Check,
        api::Doctor,
        api::Done,
        api::Cancelled,
        api::ProgramReport,
        api::ProgramEnd,
        api::Turn,
        api::TurnKind,
        api::Turns,
        api::Dashboard,
        api::Session,
    ))
)]
struct Document;

/// The document as JSON text.
pub fn document() -> String {
    Document::openapi().to_pretty_json().unwrap_or_default()
}
