//! Tests images that are too small for a window, or have another number of channels than the model expects.

use oip_types::{ErrorCode, InferRequest};

use crate::support::{Runtime, infer};

/// Checks that images smaller than the window are refused, also in both directions, where two negative output
/// dimensions would have a positive product.
#[test]
fn images_smaller_than_a_window_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_any_image");
    for (height, width) in [(1, 1), (1, 2), (2, 1), (1, 6), (0, 0), (0, 6)] {
        let error = infer(&*model, image(height, width)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "the inputs are too small for the model: a window of a convolution or pool reaches ";
        assert!(error.to_string().contains(expected), "{error}");
    }
    let outputs = infer(&*model, image(3, 4)).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 64, 1, 2]);
}

/// Checks that the error reports the number of channels that the weights have. The metadata keeps the file's
/// free dimensions, since configurations repeat them.
#[test]
fn images_of_other_channels_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_any_channels");
    assert_eq!(
        model.metadata().inputs[0].shape.dims(),
        [Some(1), None, None, None]
    );
    for (name, channels, expected) in [
        (
            "window_of_any_channels",
            3,
            "takes images of 6 channels, not of 3",
        ),
        ("window_of_two_images", 2, "takes images of 6 channels, not of 4"),
        ("window_of_two_images", 5, "takes images of 6 channels, not of 10"),
    ] {
        let error = infer(&*Runtime::BuiltIn.model(name), images(channels, 4, 4)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Checks that images smaller than the window in any direction are refused, since the output would have no
/// elements.
#[test]
fn images_one_step_smaller_than_a_window_are_refused() {
    let windows = ["window_of_any_image", "window_by_twos"]
        .iter()
        .chain(&POOLS[..4]);
    let windows = windows.map(|name| (*name, [(2, 2), (2, 4), (4, 2)]));
    // With stride 2 and rounding up, a window may start beyond the image, so only smaller images are refused.
    for (name, sizes) in windows.chain([("max_pool_rounded_up", [(1, 1), (1, 4), (4, 1)])]) {
        let model = Runtime::BuiltIn.model(name);
        for (height, width) in sizes {
            let error = infer(&*model, image(height, width)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
            let expected =
                "the inputs are too small for the model: a window of a convolution or pool reaches ";
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
        infer(&*model, image(3, 3)).unwrap();
    }
}

/// Models with pools of 3x3 windows, for images of any size.
const POOLS: [&str; 5] = [
    "average_pool_by_twos",
    "average_pool_of_any_image",
    "max_pool_by_twos",
    "max_pool_of_any_image",
    "max_pool_rounded_up",
];

#[test]
fn images_smaller_than_a_pools_window_are_refused() {
    for name in POOLS {
        let model = Runtime::BuiltIn.model(name);
        for (height, width) in [(1, 1), (1, 5), (5, 1), (2, 1)] {
            let error = infer(&*model, image(height, width)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
            let expected = "the inputs are too small for the model";
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    }
}

/// Checks images that the request's values cut to a size smaller than the window.
#[test]
fn slices_smaller_than_a_window_are_refused() {
    let model = Runtime::BuiltIn.model("window_of_a_slice");
    let part = |ends: [i64; 2]| {
        let corner = |places: [i64; 2]| {
            let shape = tensor_core::Shape::new(&[2]).unwrap();
            tensor_core::Tensor::from_vec(shape, places.to_vec()).unwrap()
        };
        let request = image(8, 8).with_input("starts", corner([0, 0]));
        request.with_input("ends", corner(ends))
    };
    for ends in [[1, 1], [0, 0], [1, 8], [8, 1], [2, 8], [8, 2]] {
        let error = infer(&*model, part(ends)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
    }
    let outputs = infer(&*model, part([4, 8])).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 64, 2, 6]);
}

#[test]
fn images_without_pixels_are_refused() {
    let model = Runtime::BuiltIn.model("pool_of_any_image");
    for (height, width) in [(0, 0), (0, 4), (4, 0)] {
        let error = infer(&*model, image(height, width)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{}", error.report());
        let expected = "the inputs are too small for the model";
        assert!(error.to_string().contains(expected), "{error}");
    }
    let outputs = infer(&*model, image(1, 2)).unwrap();
    assert_eq!(outputs[0].value.shape().dims(), [1, 3, 1, 1]);
}

/// Builds a request with one image of this size.
fn image(height: u64, width: u64) -> InferRequest {
    images(3, height, width)
}

fn images(channels: u64, height: u64, width: u64) -> InferRequest {
    let shape = tensor_core::Shape::new(&[1, channels, height, width]).unwrap();
    let image = vec![1.0f32; (channels * height * width) as usize];
    let image = tensor_core::Tensor::from_vec(shape, image).unwrap();
    let model = oip_types::ModelRef::new("m", None).unwrap();
    InferRequest::new(model).with_input("image", image)
}
